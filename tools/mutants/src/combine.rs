//! One source text with all mutants in it, of which `crate::mutant(id)` activates one.
//!
//! `a < b` becomes `(if crate::mutant(1) { a <= b } else { a < b })`. The alternatives contain the original operands: at
//! most one mutant is active, and the text stays short where mutants nest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::Result;
use crate::list::{Genre, Mutant, Position};

/// The text of a file with these mutants in it, and the ids of those that have no place there.
pub fn combine(text: &str, mutants: &[&Mutant]) -> Result<(String, Vec<usize>)> {
    let lines = LineStarts::of(text);
    let mut expressions = Expressions { lines: &lines, found: BTreeMap::new(), needed_arms: BTreeSet::new() };
    expressions.visit_file(&syn::parse_file(text)?);
    let mut edits = Edits { text, replaced: BTreeMap::new(), inserted: BTreeMap::new() };
    let mut left_out = Vec::new();
    for mutant in mutants {
        let (start, end) = (lines.offset(mutant.span.start), lines.offset(mutant.span.end));
        let (id, new) = (mutant.id, &mutant.replacement);
        match mutant.genre {
            Genre::FnValue => edits.insert(start, format!("if crate::mutant({id}) {{ return {new}; }}\n")),
            Genre::MatchArmGuard => edits.replace(start..end, id, new.clone()),
            Genre::MatchArm if expressions.needed_arms.contains(&start) => left_out.push(id),
            Genre::MatchArm => match arm_guard(&text[start..end]) {
                Some((at, true)) => edits.insert(start + at, format!("!crate::mutant({id}) && ")),
                Some((at, false)) => edits.insert(start + at, format!(" if !crate::mutant({id})")),
                None => left_out.push(id),
            },
            Genre::BinaryOperator | Genre::UnaryOperator | Genre::StructField => {
                match expressions.found.get(&start) {
                    Some(whole) => {
                        let mutated = [&text[whole.start..start], new, &text[end..whole.end]].concat();
                        edits.replace(whole.clone(), id, mutated);
                    }
                    // A chain of `let` conditions: another operator does not compile.
                    None => left_out.push(id),
                }
            }
        }
    }
    Ok((edits.render(0..text.len(), None), left_out))
}

/// Where the guard of a match arm begins, or would begin, and whether it has one.
fn arm_guard(arm: &str) -> Option<(usize, bool)> {
    let arrow = arm.find(" =>")?;
    let guard = arm[..arrow].find(" if ").map(|at| (at + " if ".len(), true));
    Some(guard.unwrap_or((arrow, false)))
}

/// The byte offsets of the lines of a text.
struct LineStarts<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> LineStarts<'a> {
    fn of(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        LineStarts { text, starts }
    }

    fn offset(&self, position: Position) -> usize {
        let start = self.starts[position.line - 1];
        let characters = self.text[start..].char_indices().map(|(at, _)| at);
        start + characters.chain([self.text.len() - start]).nth(position.column - 1).unwrap_or(0)
    }

    fn of_token(&self, at: proc_macro2::LineColumn) -> usize {
        self.offset(Position { line: at.line, column: at.column + 1 })
    }
}

/// The ranges of expressions by the offset of their operator or field.
struct Expressions<'a> {
    lines: &'a LineStarts<'a>,
    found: BTreeMap<usize, Range<usize>>,
    /// Where the arms begin without which a match is not exhaustive.
    needed_arms: BTreeSet<usize>,
}

impl Expressions<'_> {
    fn add(&mut self, part: proc_macro2::Span, whole: proc_macro2::Span) {
        let whole = self.lines.of_token(whole.start())..self.lines.of_token(whole.end());
        self.found.insert(self.lines.of_token(part.start()), whole);
    }
}

impl<'ast> Visit<'ast> for Expressions<'_> {
    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        if !has_let(&expression.left) && !has_let(&expression.right) {
            self.add(expression.op.span(), expression.span());
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        self.add(expression.op.span(), expression.span());
        visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        let catches_all = |arm: &syn::Arm| arm.guard.is_none() && matches!(arm.pat, syn::Pat::Wild(_));
        if !expression.arms.iter().any(catches_all) {
            let needed = expression.arms.iter().filter(|arm| arm.guard.is_none());
            self.needed_arms.extend(needed.map(|arm| self.lines.of_token(arm.pat.span().start())));
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        for field in &expression.fields {
            self.add(field.span(), expression.span());
        }
        visit::visit_expr_struct(self, expression);
    }
}

fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// The ids of the mutants of an expression, and its mutated text.
type Alternatives = Vec<(usize, String)>;

struct Edits<'a> {
    text: &'a str,
    /// By where the expression begins and where it ends, the longest first.
    replaced: BTreeMap<(usize, Reverse<usize>), Alternatives>,
    inserted: BTreeMap<usize, String>,
}

impl Edits<'_> {
    fn replace(&mut self, range: Range<usize>, id: usize, mutated: String) {
        self.replaced.entry((range.start, Reverse(range.end))).or_default().push((id, mutated));
    }

    fn insert(&mut self, at: usize, text: String) {
        self.inserted.entry(at).or_default().push_str(&text);
    }

    /// The text of a range with its edits. `within`: the expression that this is the text of.
    fn render(&self, range: Range<usize>, within: Option<&Range<usize>>) -> String {
        let mut rendered = String::new();
        let mut at = range.start;
        for ((start, end), mutants) in &self.replaced {
            let inner = *start..end.0;
            let is_whole = within == Some(&inner);
            if inner.start < at || inner.end > range.end || is_whole {
                continue;
            }
            // What is inserted at the beginning of an expression is before its mutants.
            let inserted_before = within.is_some() && inner.start == range.start;
            rendered.push_str(&self.plain(at..inner.start, within.is_some() && at == range.start));
            if !inserted_before {
                rendered.push_str(self.inserted.get(&inner.start).map_or("", String::as_str));
            }
            rendered.push('(');
            for (id, mutated) in mutants {
                rendered.push_str(&format!("if crate::mutant({id}) {{ {mutated} }} else "));
            }
            rendered.push_str(&format!("{{ {} }})", self.render(inner.clone(), Some(&inner))));
            at = inner.end;
        }
        rendered.push_str(&self.plain(at..range.end, within.is_some() && at == range.start));
        rendered
    }

    /// Text without expressions to replace. `rest`: what is inserted at its beginning was inserted before.
    fn plain(&self, range: Range<usize>, rest: bool) -> String {
        let mut plain = String::new();
        let mut at = range.start;
        for (place, inserted) in self.inserted.range(range.clone()) {
            if rest && *place == range.start {
                continue;
            }
            plain.push_str(&self.text[at..*place]);
            plain.push_str(inserted);
            at = *place;
        }
        plain.push_str(&self.text[at..range.end]);
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Span;

    /// A mutant that replaces the first occurrence of `old`.
    fn mutant(text: &str, id: usize, genre: Genre, old: &str, new: &str) -> Mutant {
        let at = text.find(old).unwrap();
        let position = |offset: usize| {
            let before = &text[..offset];
            let start = before.rfind('\n').map_or(0, |at| at + 1);
            Position { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
        };
        let span = Span { start: position(at), end: position(at + old.len()) };
        Mutant { id, name: String::new(), file: String::new(), genre, span, replacement: new.into() }
    }

    fn combined(text: &str, mutants: &[Mutant]) -> String {
        let (combined, left_out) = combine(text, &mutants.iter().collect::<Vec<_>>()).unwrap();
        assert!(left_out.is_empty(), "{left_out:?}");
        syn::parse_file(&combined).unwrap();
        combined
    }

    #[test]
    fn mutants_of_one_operator_and_of_its_operands_nest() {
        let text = "fn f() -> bool { a + b < c }";
        let mutants = [
            mutant(text, 1, Genre::BinaryOperator, "<", ">"),
            mutant(text, 2, Genre::BinaryOperator, "<", "=="),
            mutant(text, 3, Genre::BinaryOperator, "+", "-"),
        ];
        assert_eq!(
            combined(text, &mutants),
            "fn f() -> bool { (if crate::mutant(1) { a + b > c } else if crate::mutant(2) { a + b == c } \
             else { (if crate::mutant(3) { a - b } else { a + b }) < c }) }"
        );
    }

    #[test]
    fn the_value_of_a_function_is_replaced_before_its_first_statement() {
        let text = "/// ä\nfn f() -> bool { !a }";
        let mutants =
            [mutant(text, 1, Genre::FnValue, "!a", "true"), mutant(text, 2, Genre::UnaryOperator, "!", "")];
        assert_eq!(
            combined(text, &mutants),
            "/// ä\nfn f() -> bool { if crate::mutant(1) { return true; }\n(if crate::mutant(2) { a } else { !a }) }"
        );
    }

    #[test]
    fn an_insertion_before_nested_expressions_is_made_once() {
        let text = "fn f() -> bool { a + b < c }";
        let mutants = [
            mutant(text, 1, Genre::FnValue, "a", "true"),
            mutant(text, 2, Genre::BinaryOperator, "<", ">"),
            mutant(text, 3, Genre::BinaryOperator, "+", "-"),
        ];
        assert_eq!(combined(text, &mutants).matches("crate::mutant(1)").count(), 1);
    }

    #[test]
    fn an_arm_is_deleted_by_its_guard() {
        let text = "fn f() { match x { 1 if a => b, 2 => c, _ => d } }";
        let mutants = [
            mutant(text, 1, Genre::MatchArm, "1 if a => b,", ""),
            mutant(text, 2, Genre::MatchArmGuard, "a =>", "true"),
            mutant(text, 3, Genre::MatchArm, "2 => c,", ""),
        ];
        let mut mutants = mutants.to_vec();
        mutants[1].span.end.column -= 3;
        assert_eq!(
            combined(text, &mutants),
            "fn f() { match x { 1 if !crate::mutant(1) && (if crate::mutant(2) { true } else { a }) => b, \
             2 if !crate::mutant(3) => c, _ => d } }"
        );
    }

    #[test]
    fn an_arm_without_which_a_match_is_not_exhaustive_is_left_out() {
        let text = "fn f() { match x { _ if a => b, Some(_) => c, None => d } }";
        let mutants = [
            mutant(text, 1, Genre::MatchArm, "_ if a => b,", ""),
            mutant(text, 2, Genre::MatchArm, "None => d", ""),
        ];
        let (combined, left_out) = combine(text, &mutants.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(left_out, [2]);
        assert!(combined.contains("_ if !crate::mutant(1) && a => b, Some(_) => c, None => d"), "{combined}");
    }

    #[test]
    fn a_field_is_deleted_from_its_expression() {
        let text = "fn f() -> S { S { a: 1, ..b } }";
        assert_eq!(
            combined(text, &[mutant(text, 1, Genre::StructField, "a: 1,", "")]),
            "fn f() -> S { (if crate::mutant(1) { S {  ..b } } else { S { a: 1, ..b } }) }"
        );
    }

    #[test]
    fn a_chain_of_let_conditions_is_left_out() {
        let text = "fn f() { if let Some(a) = b && a { c() } }";
        let mutant = mutant(text, 7, Genre::BinaryOperator, "&&", "||");
        assert_eq!(combine(text, &[&mutant]).unwrap(), (text.to_owned(), vec![7]));
    }
}
