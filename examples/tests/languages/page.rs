//! `docs/PUBLISHING.md`, whose snippets are run as they stand there.

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PUBLISHING.md");

pub(crate) const CONFLUENT_KAFKA: &str = "Python, Kafka ([confluent-kafka]";
pub(crate) const KAFKA_PYTHON: &str = "Python, Kafka ([kafka-python]";
pub(crate) const PIKA: &str = "Python, RabbitMQ ([pika]";
pub(crate) const BOTO3: &str = "Python, SQS ([boto3]";
pub(crate) const BOTO3_FIFO: &str = "Python, SQS, a FIFO queue:";
pub(crate) const PUBSUB: &str = "Python, Pub/Sub ([google-cloud-pubsub]";

/// Those that are run, by how the line above them begins.
const RUN: [&str; 6] = [CONFLUENT_KAFKA, KAFKA_PYTHON, PIKA, BOTO3, BOTO3_FIFO, PUBSUB];

/// What stands in a snippet for names and addresses of a reader's own, and what is there in a test.
pub(crate) type Names<'a> = &'a [(&'a str, &'a str)];

/// The snippet under the line that begins so, with other names in it.
pub(crate) fn snippet(title: &str, names: Names<'_>) -> String {
    let page = std::fs::read_to_string(FILE).expect("the page is in the repository");
    with_names(&find(&page, title).unwrap_or_else(|why| panic!("docs/PUBLISHING.md {why}")), names)
        .unwrap_or_else(|why| panic!("the snippet of docs/PUBLISHING.md under `{title}` {why}"))
}

fn find(page: &str, title: &str) -> Result<String, String> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(title));
    let Some(_) = lines.next() else { return Err(format!("has no line that begins `{title}`")) };
    let mut lines = lines.skip_while(|line| line.is_empty());
    if lines.next() != Some("```python") {
        return Err(format!("has no ```python block under the line that begins `{title}`"));
    }
    Ok(lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect())
}

fn with_names(snippet: &str, names: Names<'_>) -> Result<String, String> {
    names.iter().try_fold(snippet.to_owned(), |snippet, (shown, here)| {
        if snippet.contains(shown) { Ok(snippet.replace(shown, here)) } else { Err(format!("does not have {shown}")) }
    })
}

#[test]
fn every_snippet_of_python_is_run() {
    let page = std::fs::read_to_string(FILE).expect("the page is in the repository");
    for title in RUN {
        assert!(!find(&page, title).expect(title).is_empty());
    }
    let shown = page.lines().filter(|line| line.starts_with("```python")).count();
    assert_eq!(shown, RUN.len(), "a snippet of docs/PUBLISHING.md is run by no test");
}

#[test]
fn a_snippet_that_is_not_there_is_said() {
    let page = "Python, A:\n\n```python\na(\n\n  1)\n```\n\nPython, B:\n\n```js\nb\n```\n";
    assert_eq!(find(page, "Python, A").as_deref(), Ok("a(\n\n  1)\n"));
    assert!(find(page, "Python, B").unwrap_err().contains("no ```python block"));
    assert!(find(page, "Python, C").unwrap_err().contains("no line that begins `Python, C`"));
    assert_eq!(with_names("f(\"x\")", &[("\"x\"", "\"y\"")]).as_deref(), Ok("f(\"y\")"));
    assert!(with_names("f(x)", &[("\"x\"", "\"y\"")]).is_err());
}
