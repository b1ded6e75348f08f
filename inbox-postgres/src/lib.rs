//! x
mod depth;
