//! How fast, next to polling and nothing else. `cargo test --release -p inbox-kafka -- --ignored --nocapture speed`
