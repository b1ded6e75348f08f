//! What the compiler says about the common mistakes. Look at each snapshot as somebody who wrote it for the first time:
//! it has to say what a handler is. `TRYBUILD=overwrite cargo test -p inbox-compile-fail` writes them anew.
//!
//! In a package of its own: trybuild builds its programs with the features that the package of the test is built with, and
//! this one has none. In that of the facade all of its features, brokers included, would be built once more.

#[test]
fn common_mistakes_say_what_a_handler_is() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
