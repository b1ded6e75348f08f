//! Probe.
use sqlx::Database;
pub(crate) fn depth<DB: Database>(conn: &DB::Connection) -> usize {
    <DB::TransactionManager>::get_transaction_depth(conn)
}
/// x
pub async fn rb<DB: Database>(conn: &mut DB::Connection) -> Result<usize, sqlx::Error> {
    <DB::TransactionManager>::rollback(conn).await?;
    Ok(depth::<DB>(conn))
}
/// x
pub async fn go(tx: &mut sqlx::Transaction<'static, sqlx::Postgres>) -> Result<usize, sqlx::Error> {
    rb::<sqlx::Postgres>(&mut **tx).await
}
