//! Secrets in what is echoed back: a URL that was written in the wrong place must not end up in a log.

/// The text without the URLs in it. `args` are the words of the command line: the parser of options quotes them whole,
/// and a password that was not escaped may have spaces and quotes in it.
pub(crate) fn urls(text: &str, args: &[String]) -> String {
    let values = args.iter().filter_map(|arg| arg.split_once('=')).map(|(_, value)| value);
    let mut written: Vec<&str> = args.iter().map(String::as_str).chain(values).collect();
    written.retain(|word| may_be_url(word));
    // An option that takes a list quotes one value of it.
    let pieces: Vec<&str> =
        written.iter().flat_map(|word| word.split(',')).filter(|piece| piece.len() >= 4).collect();
    written.extend(pieces);
    // The longest first: one may be a part of another.
    written.sort_by_key(|word| std::cmp::Reverse(word.len()));
    let mut shown = text.to_owned();
    for word in written {
        shown = shown.replace(word, &without_secret(word));
    }
    each_word(&shown)
}

/// What is left: words that were not written like this, such as one value of a list.
fn each_word(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let is_border = |c: char| c.is_whitespace() || "'\"`<>".contains(c);
    for piece in text.split_inclusive(is_border) {
        let word = piece.trim_end_matches(is_border);
        shown.push_str(&if may_be_url(word) { without_secret(word) } else { word.to_owned() });
        shown.push_str(&piece[word.len()..]);
    }
    shown
}

fn may_be_url(word: &str) -> bool {
    word.contains("://") || (word.contains('@') && word.contains(':')) || scheme_of(word).is_some()
}

/// The scheme, if it is one of a store.
fn scheme_of(word: &str) -> Option<&'static str> {
    let scheme = word.split_once(':')?.0;
    let known = distlock::drivers().iter().flat_map(|driver| driver.schemes());
    known.copied().find(|known| known.eq_ignore_ascii_case(scheme))
}

/// A store's scheme and nothing else of it; before it, the option that it was written with, as in `--store=redis://…`.
fn without_secret(word: &str) -> String {
    let is_option =
        |name: &str| name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    let (option, url) = match word.split_once('=') {
        Some((name, url)) if is_option(name) => (format!("{name}="), url),
        _ => (String::new(), word),
    };
    match scheme_of(url) {
        Some(scheme) => format!("{option}{scheme}:***"),
        None => format!("{option}***"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_in_the_wrong_place_keeps_its_secrets() {
        for text in [
            "unrecognized subcommand 'redis://u:s3cret@h:1'",
            "unexpected argument '--stroe=postgres://u:s3cret@h/db' found",
            "mysql://h/db?password=s3cret",
            "s3cret://h",
            "a redis://:s3cret@h b mongodb://u:s3cret@h",
            "unrecognized subcommand 'redis:/u:s3cret@h'",
            "unrecognized subcommand 'u:s3cret@h'",
            "unrecognized subcommand 'memory:s3cret'",
        ] {
            assert!(!urls(text, &[]).contains("s3cret"), "{}", urls(text, &[]));
        }
        assert_eq!(urls("it's 'fine'  as\nit is: a=b", &["a=b".to_owned()]), "it's 'fine'  as\nit is: a=b");
        assert_eq!(urls("--store=redis://u:p@h", &[]), "--store=redis:***");
    }

    #[test]
    fn a_password_with_spaces_and_quotes_is_hidden_whole() {
        for secret in ["s3 cr3t", "s3'cr3t", "s3\"cr3t", "s3<cr3t", "s3\ncr3t", "s3=cr3t"] {
            let url = format!("redis://u:{secret}@h");
            for arg in [url.clone(), format!("--stroe={url}")] {
                let said = urls(&format!("unexpected argument '{arg}' found"), &[arg]);
                assert!(!said.contains("cr3t") && !said.contains("s3"), "{said}");
            }
        }
    }
}
