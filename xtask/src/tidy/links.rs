//! Relative links in Markdown lead somewhere.

use std::collections::BTreeSet;

use super::checks::SourceFile;

/// Every relative link of a Markdown file leads to a file of the repository or to a folder of one.
pub(crate) fn links_resolve(files: &[SourceFile], paths: &[String]) -> Vec<String> {
    let there = with_folders(paths);
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&file.text) {
            match resolved(&file.path, &target) {
                Some(path) if there.contains(&path) => {}
                _ => faults.push(format!("{}:{line}: the link to {target} leads nowhere", file.path)),
            }
        }
    }
    faults
}

fn with_folders(paths: &[String]) -> BTreeSet<String> {
    let mut there = BTreeSet::from([String::new()]);
    for path in paths {
        there.insert(path.clone());
        there.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
    }
    there
}

/// The relative targets of links outside code, without their anchors, each with its line number.
fn links(markdown: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in markdown.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let line = without_code(line);
            let inline =
                line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split_once(')')).map(|(target, _)| target);
            let reference =
                line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
            for target in inline.chain(reference) {
                // What follows a blank is a title.
                let path = target.trim().split([' ', '#']).next().unwrap_or_default().trim_matches(['<', '>']);
                let elsewhere = path.contains("://") || path.starts_with("mailto:");
                if !path.is_empty() && !elsewhere {
                    found.push((at + 1, path.to_owned()));
                }
            }
        }
    }
    found
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The path from the root that `target` means in the file at `from`; none when it leaves the repository.
fn resolved(from: &str, target: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (start, rest) = target.strip_prefix('/').map_or((folder, target), |rest| ("", rest));
    let mut parts: Vec<&str> = start.split('/').filter(|part| !part.is_empty()).collect();
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        links_resolve(&[file], &["docs/CONTRACT.md".to_owned(), "README.md".to_owned()])
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let found = faults("README.md", "one\n[a](docs/CONTRACT.md) and [b](docs/contract.md#part)\n");
        assert_eq!(found, ["README.md:2: the link to docs/contract.md leads nowhere"]);
        assert_eq!(faults("docs/CONTRACT.md", "[a]: ../READ.md \"title\"").len(), 1);
        assert_eq!(faults("README.md", "[out](../other/README.md)").len(), 1);
    }

    #[test]
    fn links_that_resolve_and_code_pass() {
        let text = "[a](docs/) [b](./docs/CONTRACT.md \"title\") [c](#part) [d](https://x/y) ![e](/README.md)\n\
                    `[f](gone.md)`\n```\n[g](gone.md)\n```\n- [ ] to do\n";
        assert_eq!(faults("README.md", text), [""; 0]);
        assert_eq!(faults("docs/CONTRACT.md", "[up](../README.md#top)"), [""; 0]);
    }
}
