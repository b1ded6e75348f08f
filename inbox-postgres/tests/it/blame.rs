//! Whose fault an error is.

use std::{error::Error, fmt, sync::Arc};

use inbox_core::{Blame, InboxStore, Limits};
use inbox_postgres::sqlx;

use crate::support::{Bench, raw};

/// An error of a handler's own.
#[derive(Debug)]
struct Wrapped(Arc<sqlx::Error>);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no luck")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_says_whose_fault_it_is_however_deep_it_lies() {
    let bench = Bench::new("blame").await;
    for (code, blame) in [
        ("08006", Blame::Infrastructure),
        ("53100", Blame::Infrastructure),
        ("53300", Blame::Infrastructure),
        ("57P01", Blame::Infrastructure),
        ("57P05", Blame::Infrastructure),
        ("25P03", Blame::Infrastructure),
        ("25P04", Blame::Infrastructure),
        ("58030", Blame::Infrastructure),
        ("55P03", Blame::Infrastructure),
        ("40001", Blame::Contention),
        ("40P01", Blame::Contention),
        ("25P02", Blame::Unpinned),
        ("57014", Blame::Message),
        ("25006", Blame::Message),
        ("23505", Blame::Message),
        ("P0001", Blame::Message),
    ] {
        let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$");
        let error = raw(&raise, &mut tx).await.expect_err("raises");
        bench.store.rollback(tx).await.expect("rolls back");
        assert_eq!(bench.store.classify(&error), blame, "{code}");
        let shared = Arc::new(error);
        assert_eq!(bench.store.classify(&shared), blame, "{code}, shared");
        let wrapped = Wrapped(shared);
        assert_eq!(bench.store.classify(&wrapped), blame, "{code}, shared and wrapped");
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_gone_is_nobodys_fault() {
    let bench = Bench::new("blame").await;
    assert_eq!(bench.store.classify(&sqlx::Error::PoolTimedOut), Blame::Infrastructure);
    assert_eq!(bench.store.classify(&Arc::new(sqlx::Error::PoolTimedOut)), Blame::Infrastructure);
    assert_eq!(bench.store.classify(&Arc::new(sqlx::Error::RowNotFound)), Blame::Message);
    bench.close().await;
}
