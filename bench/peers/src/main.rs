//! Us, the raw driver and the libraries that users would pick instead, on the same servers in one run. Slices of all
//! participants alternate, so that whatever else the machine does falls on everybody.

mod course;
mod field;
mod participant_process;
mod protocol;
mod table;

use std::path::PathBuf;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).cloned()
    };
    let seconds = value("--seconds").and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let only = value("--only");
    let held = value("--held").and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let json = value("--json").map(PathBuf::from);
    let mut all = Vec::new();
    for arena in field::ARENAS.iter().filter(|arena| only.as_ref().is_none_or(|only| only == arena.name)) {
        let results = course::run(arena, seconds, held);
        let cells = table::cells(&results);
        println!("\n{} ({}), {}\n{}", arena.name, results.server, arena.setup, table::render(&cells));
        let mut report = serde_json::to_value(&results).unwrap_or_default();
        report["table"] = serde_json::json!(cells);
        all.push(report);
    }
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&all).unwrap_or_default() + "\n";
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("peers: cannot write {}: {error}", path.display());
            std::process::exit(1);
        }
    }
}
