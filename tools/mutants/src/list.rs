//! The mutants, as cargo-mutants lists them.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Result;

#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// Its number in the build, from 1 on.
    #[serde(default)]
    pub id: usize,
    pub name: String,
    pub file: String,
    pub genre: Genre,
    /// What is replaced.
    pub span: Span,
    pub replacement: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Span {
    pub start: Position,
    pub end: Position,
}

/// Line and column from 1 on, in characters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// The mutants of these files, numbered after `last`. Formatting for people is not what the tests are about.
pub fn mutants(root: &Path, package: &str, files: &[&str], last: usize) -> Result<Vec<Mutant>> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--package", package]);
    command.args(["--exclude-re", "impl .*(Debug|Display) for"]);
    for file in files {
        command.args(["--file", file]);
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("cargo mutants --list: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&output.stdout)?;
    for (mutant, id) in mutants.iter_mut().zip(last + 1..) {
        mutant.id = id;
    }
    Ok(mutants)
}
