//! The command line.

use clap::Parser;

/// One handler on every broker: the same messages with the same duplicates over each, and one table.
///
/// Exit status 0: every row is right. 1: one is not. 3: an error of this program.
#[derive(Clone, Debug, Parser)]
#[command(name = "swap")]
pub(crate) struct Args {
    /// A broker's URL, with what to consume (`kafka://host:9092/payments?group=receipts`); what it names is made if it is
    /// not there, and should be empty. May be given several times. Default: a file in a temporary folder.
    #[arg(long, value_name = "URL")]
    pub(crate) transport: Vec<String>,
    /// Every broker of which `cargo xtask services up` has told the environment, and the embedded one.
    #[arg(long, conflicts_with = "transport")]
    pub(crate) all: bool,
    /// How many payments; every tenth of them is published twice.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) messages: u32,
    /// The negative control: the transport of this broker acknowledges some messages that it never hands over.
    #[arg(long, value_name = "BROKER")]
    pub(crate) saboteur: Option<String>,
}

impl Args {
    /// How many messages are published, those that come twice counted twice.
    pub(crate) fn published(&self) -> u64 {
        u64::from(self.messages) + u64::from(self.messages.div_ceil(10))
    }

    pub(crate) fn breaks(&self, broker: &str) -> bool {
        self.saboteur.as_deref() == Some(broker)
    }
}
