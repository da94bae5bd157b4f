//! The build with all mutants: a copy of the tree, without the mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::Result;
use crate::combine::combine;
use crate::list::Mutant;

/// Optimised, since the tests run hundreds of times, but with the checks of a debug build.
const PROFILE: &str = "simulation";

/// How often mutants that do not compile are left out. The compiler reports all of a kind at once, so more rounds mean that
/// the wrong ones are left out.
const ROUNDS: usize = 4;

pub struct Build {
    /// The tree with the mutants.
    pub tree: PathBuf,
    /// Where its crates are built.
    target: PathBuf,
    package: String,
}

impl Build {
    /// Copies the tree, puts the mutants in, and returns the ids of those that do not compile.
    pub fn new(
        root: &Path,
        out: &Path,
        package: &str,
        mutants: &[Mutant],
    ) -> Result<(Self, BTreeSet<usize>)> {
        let build = Build { tree: out.join("tree"), target: out.join("build"), package: package.to_owned() };
        let mut unviable = BTreeSet::new();
        for _ in 0..ROUNDS {
            copy_tree(root, &build.tree)?;
            unviable.extend(build.put_in(root, mutants, &unviable)?);
            let broken = build.check()?;
            if broken.is_empty() {
                return Ok((build, unviable));
            }
            eprintln!("{} mutants do not compile", broken.len());
            unviable.extend(broken);
        }
        Err(format!("the build fails whatever is left out: run cargo check in {}", build.tree.display())
            .into())
    }

    fn put_in(&self, root: &Path, mutants: &[Mutant], without: &BTreeSet<usize>) -> Result<Vec<usize>> {
        let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
        for mutant in mutants.iter().filter(|mutant| !without.contains(&mutant.id)) {
            files.entry(&mutant.file).or_default().push(mutant);
        }
        let mut left_out = Vec::new();
        for (file, mutants) in files {
            let (combined, no_place) = combine(&fs::read_to_string(root.join(file))?, &mutants)?;
            fs::write(self.tree.join(file), combined)?;
            left_out.extend(no_place);
        }
        let lib = self.tree.join("crates").join(&self.package).join("src/lib.rs");
        let text = fs::read_to_string(&lib)?;
        fs::write(&lib, text + include_str!("switch.txt"))?;
        Ok(left_out)
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("cargo");
        command.current_dir(&self.tree).args(arguments);
        command.args(["--package", &self.package, "--message-format=json"]);
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        Ok(command.stderr(Stdio::piped()).output()?)
    }

    /// The mutants that do not compile.
    fn check(&self) -> Result<BTreeSet<usize>> {
        let output = self.cargo(&["check", "--lib", "--features", "test-util"])?;
        if output.status.success() {
            return Ok(BTreeSet::new());
        }
        let mut broken = BTreeSet::new();
        for message in messages(&output) {
            if message["reason"] != "compiler-message" || message["message"]["level"] != "error" {
                continue;
            }
            for span in message["message"]["spans"].as_array().into_iter().flatten() {
                if span["is_primary"] == true {
                    broken.extend(self.mutant_at(span)?);
                }
            }
        }
        match broken.is_empty() {
            true => Err(format!("cargo check: {}", String::from_utf8_lossy(&output.stderr)).into()),
            false => Ok(broken),
        }
    }

    /// The last mutant that begins before the end of a span.
    fn mutant_at(&self, span: &Value) -> Result<Option<usize>> {
        let (Some(file), Some(end)) = (span["file_name"].as_str(), span["byte_end"].as_u64()) else {
            return Ok(None);
        };
        let text = fs::read(self.tree.join(file))?;
        let before = String::from_utf8_lossy(&text[..usize::try_from(end)?.min(text.len())]).into_owned();
        let id = before.rsplit_once("crate::mutant(").and_then(|(_, rest)| rest.split_once(')'));
        Ok(id.and_then(|(id, _)| id.parse().ok()))
    }

    /// Builds test programs (`lib` or the name of a file in `tests`), and returns their paths.
    pub fn programs(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let mut arguments = vec!["test", "--no-run", "--profile", PROFILE];
        for name in names {
            match *name {
                "lib" => arguments.push("--lib"),
                test => arguments.extend(["--test", test]),
            }
        }
        let output = self.cargo(&arguments)?;
        if !output.status.success() {
            return Err(format!("cargo test: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let programs = messages(&output)
            .filter(|message| message["reason"] == "compiler-artifact" && message["profile"]["test"] == true)
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
        Ok(programs.collect())
    }

    /// Where cargo runs the test programs of the package.
    pub fn package_folder(&self) -> PathBuf {
        self.tree.join("crates").join(&self.package)
    }
}

fn messages(output: &Output) -> impl Iterator<Item = Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    messages.into_iter()
}

/// Copies what git knows or would add. Files that did not change keep their time, so that cargo builds little again.
fn copy_tree(root: &Path, tree: &Path) -> Result<()> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()?;
    for file in String::from_utf8(listed.stdout)?.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root.join(file), tree.join(file));
        let Ok(new) = fs::read(&from) else { continue }; // removed, or a link to a folder
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::create_dir_all(to.parent().unwrap_or(tree))?;
            fs::write(&to, new)?;
        }
    }
    Ok(())
}
