//! What the inbox costs: the same messages through it, through hand-written loops, and through nothing.
//!
//! The process that a person starts fills a topic or queue, runs each contestant in a child process of its own, proves what
//! it left in the database and at the broker, and compares within each round. A contestant reads its job from
//! its standard input and prints what it measured.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for a terminal")]

mod adapters;
mod address;
mod args;
mod backlog;
mod broker;
mod child;
mod compare;
mod contestant;
mod database;
mod machine;
mod processes;
mod queue;
mod report;
mod servers;
mod stage;
mod summary;
mod trial;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use crate::args::{Args, Mode};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.contestant {
        contestant::run().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let proved = match (&args.mode, args.backlog) {
        (Some(Mode::Adapters(args)), _) => adapters::run(args).await?,
        (None, Some(messages)) => backlog::run(&args, messages).await?,
        (None, None) => compare::run(&args).await?,
    };
    Ok(if proved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
