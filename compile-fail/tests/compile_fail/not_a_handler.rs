use inbox::{Inbox, memory::MemoryStore};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

struct OnPaid;

fn main() {
    let _ = Inbox::local("receipts", MemoryStore::new()).on::<Paid>("paid", OnPaid);
}
