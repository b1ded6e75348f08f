//! The README's table of brokers says what their transports promise.

use std::{fmt::Write, fs, path::PathBuf, time::Duration};

use inbox_core::capability::{Capabilities, Lease, Ordering};

const BEGIN: &str = "<!-- begin brokers: `INBOX_BLESS=1 cargo test -p inbox-pairs --test readme` -->\n";
const END: &str = "<!-- end brokers -->\n";

#[test]
fn the_readme_shows_what_brokers_promise() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(&file).expect("a README");
    let (before, rest) = readme.split_once(BEGIN).expect("the table's begin");
    let (shown, after) = rest.split_once(END).expect("the table's end");
    let table = table(&inbox_pairs::brokers().expect("a temporary folder"));
    if std::env::var_os("INBOX_BLESS").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
        return;
    }
    assert_eq!(shown, table, "stale: run `INBOX_BLESS=1 cargo test -p inbox-pairs --test readme`");
}

fn table(brokers: &[(&str, Capabilities)]) -> String {
    let mut text = String::from(
        "| broker | order | a key is with one consumer | a message is held | deliveries are counted | largest body |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for (name, promises) in brokers {
        let Capabilities { ordering, lease, delivery_count, exclusive_keys, max_body, .. } = promises;
        let ordering = match ordering {
            Ordering::None => "none",
            Ordering::Key => "by key",
            Ordering::Partition => "by partition",
        };
        let lease = match lease {
            Lease::Session => "as long as the session lives".to_owned(),
            Lease::Extended { timeout } => format!("as long as the process lives; {} after its death", time(*timeout)),
            Lease::Ceiling(most) => format!("{} at most", time(*most)),
        };
        let body = max_body.map_or_else(|| "no fixed limit".to_owned(), size);
        let says = |yes: &bool| if *yes { "yes" } else { "no" };
        let (keys, count) = (says(exclusive_keys), says(delivery_count));
        writeln!(text, "| {name} | {ordering} | {keys} | {lease} | {count} | {body} |").unwrap_or(());
    }
    text
}

fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3_600 == 0 => format!("{} h", seconds / 3_600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}
