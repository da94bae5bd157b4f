//! Passwords in what is echoed back: a URL that was written in the wrong place must not end up in a log.

use distlock::store::StoreUrl;

/// The text with the password of every URL in it hidden.
pub(crate) fn urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let is_border = |c: char| c.is_whitespace() || "'\"`<>".contains(c);
    for piece in text.split_inclusive(is_border) {
        let word = piece.trim_end_matches(is_border);
        shown.push_str(&word_without_secret(word));
        shown.push_str(&piece[word.len()..]);
    }
    shown
}

fn word_without_secret(word: &str) -> String {
    let Some(scheme_end) = word.find("://") else { return word.to_owned() };
    // What stands before the scheme, as in --store=redis://…
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let start = word[..scheme_end].rfind(|c| !is_scheme(c)).map_or(0, |at| at + 1);
    match StoreUrl::parse(&word[start..]) {
        Ok(url) => format!("{}{url}", &word[..start]),
        Err(_) => "***".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_in_the_wrong_place_keeps_its_password() {
        for text in [
            "unrecognized subcommand 'redis://u:s3cret@h:1'",
            "unexpected argument '--stroe=postgres://u:s3cret@h/db' found",
            "mysql://h/db?password=s3cret",
            "a redis://:s3cret@h b mongodb://u:s3cret@h",
        ] {
            assert!(!urls(text).contains("s3cret"), "{}", urls(text));
        }
        assert_eq!(urls("it's 'fine'  as\nit is"), "it's 'fine'  as\nit is");
        assert_eq!(urls("--store=redis://u:p@h"), "--store=redis://u:***@h");
    }
}
