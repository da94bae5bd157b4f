//! Measures distlock, its baseline and other lock libraries on the same servers in one run. Slices of all participants
//! alternate, so that other activity of the machine affects all alike.

mod participant_process;
mod protocol;
mod scenario_runner;
mod servers;
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
    for store in servers::ALL.iter().filter(|store| only.as_ref().is_none_or(|only| only == store.name)) {
        let results = scenario_runner::run(store, seconds, held);
        let cells = table::cells(&results);
        println!("\n{} ({}), {}\n{}", store.name, results.server, store.setup, table::render(&cells));
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
