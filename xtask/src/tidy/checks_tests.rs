use super::*;

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn a_readme_that_shows_another_program_is_found() {
    let readme = "# x\n```sh\ncargo run\n```\n```rust,no_run\nfn main() {\n}\n```\n```rust\nother\n```\n";
    assert_eq!(readme_shows_quickstart(readme, "fn main() {\n}\n"), none());
    let faults = readme_shows_quickstart(readme, "fn main() {\n    run();\n}\n");
    assert!(faults[0].contains("line 2 is\n    \"}\"\n    \"    run();\""), "{faults:?}");
    for other in ["fn main() {\n}", "fn main() {\n}\n\n", "fn main() {\r\n}\r\n", "fn main() { \n}\n"] {
        assert_eq!(readme_shows_quickstart(readme, other).len(), 1, "{other:?}");
    }
    assert_eq!(readme_shows_quickstart("```rust\nfn main() {\n```\n", "fn main() {\n}\n").len(), 1);
    assert_eq!(readme_shows_quickstart("nothing", "fn main() {}").len(), 1);
}

#[test]
fn guarantees_and_cases_that_do_not_pair_are_found() {
    let contract = "- **T-01** One.\n- **T-02** Two.\n- **note** not one\n";
    let suite = |text: &str| guarantees_have_cases(contract, &[file("suite.rs", text)]);
    let both = "        t01_one,\nasync fn t01_one(\n    pub(crate) async fn t02_two() {\n// fn t01_two()\nlet x = \"fn t02_three\";\n";
    assert_eq!(suite(both), none());
    assert_eq!(suite("async fn t01_one() {}\n"), ["T-02 of docs/CONTRACT.md has no case in inbox-conformance/src"]);
    assert!(suite(&format!("{both}fn t02_again() {{}}\n"))[0].starts_with("T-02 has more than one case"));
    assert!(suite(&format!("{both}fn s07_stray() {{}}\n"))[0].contains("the case of S-07"));
    assert_eq!(guarantees_have_cases("- **T-01** a\n- **T-01** b\n", &[file("s.rs", "fn t01_a() {}")]).len(), 1);
    assert_eq!(guarantees_have_cases("", &[]).len(), 1);
}

#[test]
fn guarantees_are_known_in_every_form() {
    for line in [
        "- **T-03** A",
        "  - **T-03**",
        "### T-03",
        "#### T-03: A",
        "| T-03 | A |",
        "| **T-03** | A |",
        "| `T-03` | A |",
    ] {
        assert_eq!(guarantee(line).as_deref(), Some("T-03"), "{line}");
    }
    for line in ["See T-03.", "- T-03 again", "### T-031", "### X-03", "| T-3 |", "- **T-03b**", "### T-0é", "#"] {
        assert_eq!(guarantee(line), None, "{line}");
    }
}

#[test]
fn a_label_is_a_case_unless_it_speaks_of_one() {
    let suite = |text: &str| guarantees_have_cases("### T-01\n", &[file("suite.rs", text)]);
    assert_eq!(suite("case(\"t01_one\", run),\n"), none());
    assert_eq!(suite("fn t01_one() {}\ncaught_by: \"t01_one\",\ncaught_by: \"t01_one\",\n"), none());
    assert_eq!(suite("// \"t01_one\"\n").len(), 1);
    assert!(suite("fn t01_one() {}\ncaught_by: \"t01_once\",\n")[0].starts_with("T-01 has more than one case"));
}

#[test]
fn a_long_file_is_found() {
    let long = "\n".repeat(MOST_LINES + 1);
    let files = [file("a.rs", &long), file("b.rs", &long[1..]), file("c.md", &long)];
    let faults = files_are_short(&files);
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("a.rs has 701 lines"));
    let warnings = files_are_getting_long(&[file("a.rs", &long), file("b.rs", &long[1..]), file("c.rs", &long[201..])]);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("b.rs has 700 lines"));
}

#[test]
fn a_second_rust_version_is_found() {
    let root = file("Cargo.toml", "[workspace.package]\nrust-version = \"1.95\"\n");
    let member = file("a/Cargo.toml", "[package]\nrust-version.workspace = true\n");
    assert_eq!(rust_version_stands_once(&[root.clone(), member.clone()]), none());
    let own = file("b/Cargo.toml", "rust-version=\"1.90\"\n");
    assert_eq!(rust_version_stands_once(&[root.clone(), own]).len(), 1);
    assert_eq!(rust_version_stands_once(&[root, file("clippy.toml", "msrv = \"1.95\"\n")]).len(), 1);
    assert_eq!(rust_version_stands_once(&[member]).len(), 1);
}

#[test]
fn a_forbidden_dependency_is_found() {
    let tree = "inbox-core v0.1.0 (/x)\nserde v1.0\nsqlx-core v0.9.0\nsqlx-core v0.9.0 (*)\n";
    assert_eq!(tree_is_without("inbox-core", tree, &["rdkafka"]), none());
    let faults = tree_is_without("inbox-core", tree, &["sqlx"]);
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("inbox-core depends on sqlx-core"));
    assert_eq!(tree_is_without("inbox-core", "", &["sqlx"]).len(), 1);
}

#[test]
fn a_crate_of_its_own_ways_is_found() {
    let good = "[package]\nname = \"a\"\ndescription = \"What it is\"\n\n[lints]\nworkspace = true\n";
    assert_eq!(crates_inherit(&[file("a/Cargo.toml", good), file("Cargo.toml", "[workspace]\n")]), none());
    assert_eq!(crates_inherit(&[file("a/Cargo.toml", &good.replace("true", "false"))]).len(), 1);
    assert_eq!(crates_inherit(&[file("a/Cargo.toml", &good.replace("What it is", ""))]).len(), 1);
    assert_eq!(crates_inherit(&[file("a/Cargo.toml", "[package]\nname = \"a\"\n")]).len(), 2);
}

#[test]
fn a_changelog_without_a_place_for_news_is_found() {
    assert_eq!(changelog_has_unreleased("# Changelog\n\n## [Unreleased]\n"), none());
    assert_eq!(changelog_has_unreleased("## Unreleased\n"), none());
    assert_eq!(changelog_has_unreleased("# Changelog\nunreleased\n## 0.1.0\n").len(), 1);
}

#[test]
fn a_path_of_one_machine_is_found() {
    let work = concat!("/wo", "rk/main");
    let home = concat!("/ro", "ot/.cargo");
    let text = format!("fine\nsee `{work}`\n{home}\n");
    let faults = no_machine_paths(&[file("a.md", &text)]);
    assert_eq!(faults.len(), 2);
    assert!(faults[0].starts_with("a.md:2:") && faults[1].starts_with("a.md:3:"), "{faults:?}");
    let inside = format!("https://x{work} target{work} ~{home} $HOME{home}\n");
    assert_eq!(no_machine_paths(&[file("a.md", &inside)]), none());
}
