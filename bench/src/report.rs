//! Writes the tables of `docs/PERFORMANCE.md` from the reports of the stores.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::scale;
use crate::servers;
use crate::table;
use crate::targets::{self, Measured, Row};

/// The folder of the reports, and the page with the tables.
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// The folder with the reports
    #[arg(long)]
    out: PathBuf,
    /// The page with the tables
    #[arg(long)]
    page: Option<PathBuf>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<(), String> {
    let reports: Vec<Value> = servers::ALL
        .iter()
        .filter_map(|store| read(&args.out.join(format!("{}.json", store.name))))
        .collect();
    if reports.is_empty() {
        return Err(format!("there is no report in {}; run distlock-bench stores first", args.out.display()));
    }
    let rows = targets::compare(&reports);
    print!("{}", as_text(&reports, &rows));
    let json = serde_json::to_string_pretty(&targets::as_json(&reports, &rows))
        .map_err(|error| error.to_string())?;
    write(&args.out.join("targets.json"), &(json + "\n"))?;
    let Some(page) = &args.page else { return Ok(()) };
    let mut text =
        std::fs::read_to_string(page).map_err(|error| format!("cannot read {}: {error}", page.display()))?;
    text = replace(&text, "targets", &(as_markdown(&reports, &rows) + &setting(&reports)))?;
    if let Some(scale) = read(&args.out.join("scale.json")) {
        text = replace(&text, "scale", &scale::as_markdown(&scale))?;
    }
    if let Some(peers) = read(&args.out.join("peers.json")) {
        text = replace(&text, "peers", &peers_as_markdown(&peers))?;
    }
    write(page, &text)
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Replaces one generated part of the page.
fn replace(page: &str, part: &str, generated: &str) -> Result<String, String> {
    let begin = format!("<!-- begin: {part}, written by bench/run -->");
    let end = format!("<!-- end: {part} -->");
    let (head, rest) = page.split_once(&begin).ok_or_else(|| format!("the page has no line {begin}"))?;
    let (_, tail) = rest.split_once(&end).ok_or_else(|| format!("the page has no line {end}"))?;
    Ok(format!("{head}{begin}\n\n{}\n\n{end}{tail}", generated.trim()))
}

/// When and where the figures were measured.
fn setting(reports: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let first = &reports[0];
    let machine = &first["machine"];
    let mut setting = format!(
        "\nMeasured on {}: {}, {} cores, {} of memory, Linux {}; {} s per run.\n\n",
        text(&first["date"]),
        text(&machine["processor"]),
        machine["cores"],
        text(&machine["memory"]),
        text(&machine["kernel"]),
        first["seconds_each"],
    );
    for report in reports {
        setting.push_str(&format!(
            "- **{}**: {}, {}; load average before its runs {}\n",
            text(&report["store"]),
            text(&report["server"]),
            text(&report["setup"]),
            report["load_average_before"],
        ));
        if let Some(failure) = report["failure"].as_str() {
            setting.push_str(&format!("  - a run failed: {failure}\n"));
        }
    }
    setting
}

fn mark(measured: &Measured) -> &'static str {
    match measured.is_met {
        Some(true) => " ✓",
        Some(false) => " ✗",
        None => "",
    }
}

/// The figure, its mark and its target.
fn cell(measured: &Measured) -> String {
    let Measured { text, target, .. } = measured;
    let target = if target.is_empty() { String::new() } else { format!(" ({target})") };
    format!("{text}{}{target}", mark(measured))
}

fn names(reports: &[Value]) -> impl Iterator<Item = &str> {
    reports.iter().map(|report| report["store"].as_str().unwrap_or("?"))
}

fn as_markdown(reports: &[Value], rows: &[Row]) -> String {
    let mut text = String::from("| question |");
    names(reports).for_each(|name| text.push_str(&format!(" {name} |")));
    text.push_str(&format!("\n| --- |{}\n", " --- |".repeat(reports.len())));
    for row in rows {
        text.push_str(&format!("| {} |", row.question));
        for measured in &row.measured {
            let bold = if measured.is_met == Some(false) { "**" } else { "" };
            let target =
                if measured.target.is_empty() { String::new() } else { format!(" ({})", measured.target) };
            text.push_str(&format!(" {bold}{}{bold}{}{target} |", measured.text, mark(measured)));
        }
        text.push('\n');
    }
    text.push_str("\n✓ meets its target (in parentheses), ✗ misses it; –: not measured or not applicable.\n");
    text
}

fn as_text(reports: &[Value], rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![vec!["QUESTION".to_owned()]];
    lines[0].extend(names(reports).map(str::to_owned));
    for row in rows {
        let mut cells = vec![row.question.to_owned()];
        cells.extend(row.measured.iter().map(cell));
        lines.push(cells);
    }
    table::align(&lines)
}

/// The tables of `bench/peers/run --json`.
fn peers_as_markdown(servers: &Value) -> String {
    let mut text = String::new();
    for server in servers.as_array().into_iter().flatten() {
        let word = |name: &str| server[name].as_str().unwrap_or("?");
        text.push_str(&format!("\n{} ({}), {}\n\n", word("store"), word("server"), word("setup")));
        let rows = server["table"].as_array().map_or(&[][..], Vec::as_slice);
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<&str> = row.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if number == 0 {
                text.push_str(&format!("|{}\n", " --- |".repeat(cells.len())));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_generated_part_of_the_page_is_replaced() {
        let part = |content: &str| {
            format!("<!-- begin: peers, written by bench/run -->\n{content}\n<!-- end: peers -->")
        };
        let page = format!("before\n{}\nafter\n", part("old"));
        let new = replace(&page, "peers", "new").unwrap_or_default();
        assert_eq!(new, format!("before\n{}\nafter\n", part("\nnew\n")));
        assert_eq!(replace(&new, "peers", "new").as_ref(), Ok(&new));
        assert!(replace("without marks", "peers", "new").is_err());
    }
}
