//! What the compiler says about the common mistakes. Look at each snapshot as somebody who wrote it for the first time:
//! it has to say what a handler is. `TRYBUILD=overwrite cargo test -p inbox-rs --test compile_fail` writes them anew.
//!
//! Not with all features: trybuild would build librdkafka once more, to say the same.

#![cfg(not(feature = "kafka"))]

#[test]
fn common_mistakes_say_what_a_handler_is() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
