//! Text in aligned columns, safe for terminals.

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. Control characters are escaped, so that no name can move the cursor or forge a line.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| escape(cell)).collect());
    }

    /// The table as text; `style_header` gets the whole header line.
    pub(crate) fn render(&self, style_header: impl Fn(&str) -> String) -> String {
        let mut widths: Vec<usize> = self.header.iter().map(|title| title.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = cells.zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut text = style_header(&line(&mut self.header.iter().copied()));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().map(String::as_str)));
            text.push('\n');
        }
        text
    }
}

/// Escapes what a terminal would interpret instead of show: control characters, and invisible ones that change the direction
/// of text or hide in it.
pub(crate) fn escape(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let interpreted = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if interpreted || c == '\\' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_move_the_cursor_or_forge_a_line() {
        let mut table = Table::new(&["NAME", "HOLDER"]);
        table.push(vec!["a\n\u{1b}[2Jb".to_owned(), "h:1".to_owned()]);
        table.push(vec!["ünï\u{202e}".to_owned(), "h:2".to_owned()]);
        let text = table.render(str::to_owned);
        assert_eq!(text.lines().count(), 3);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(text.contains(r"a\n\u{1b}[2Jb") && text.contains(r"ünï\u{202e}"));
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["A", "B"]);
        table.push(vec!["long".to_owned(), "x".to_owned()]);
        table.push(vec!["ö".to_owned(), "y".to_owned()]);
        assert_eq!(table.render(str::to_owned), "A     B\nlong  x\nö     y\n");
    }
}
