//! From the name of a resource to one path element, and the paths of its nodes.
//!
//! Letters, digits, `-`, `_` and inner dots are kept; every other byte becomes `%` and two hexadecimal digits. So no name is
//! `.` or `..`, has a `/`, or has a character that ZooKeeper refuses.

use std::fmt::Write as _;

use distlock_core::{Kind, Resource};
use percent_encoding::percent_decode_str;

/// The kinds that have nodes.
pub(crate) const KINDS: [Kind; 3] = Kind::VISIBLE;

/// The path element for a name.
pub(crate) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => escaped.push(char::from(byte)),
            b'.' if at > 0 => escaped.push('.'),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "%{byte:02x}");
            }
        }
    }
    escaped
}

/// The name of a path element; `None` if distlock did not write it.
pub(crate) fn original(element: &str) -> Option<String> {
    let name = percent_decode_str(element).decode_utf8().ok()?;
    (!name.is_empty() && escape(&name) == element).then(|| name.into_owned())
}

/// The folder of all resources of a kind.
pub(crate) fn kind_path(chroot: &str, kind: Kind) -> String {
    format!("{chroot}/{kind}")
}

/// The folder of a resource. Its children are the queue.
pub(crate) fn resource_path(chroot: &str, resource: &Resource) -> String {
    format!("{chroot}/{}/{}", resource.kind(), escape(resource.name()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const STRANGE: [&str; 18] = [
        ".",
        "..",
        "/",
        "a/b",
        "a%2fb",
        "%",
        "~",
        " ",
        "a",
        "A",
        "\0",
        "\u{7}\n",
        "\u{e9}",
        "e\u{301}",
        "日本語",
        "\u{e000}",
        "\u{ffff}",
        "zookeeper",
    ];

    #[test]
    fn every_name_is_one_valid_path_element_and_is_read_back() {
        for name in STRANGE {
            let element = escape(name);
            assert!(
                !element.is_empty() && !element.starts_with('.') && !element.contains('/'),
                "{element:?}"
            );
            assert!(element.bytes().all(|byte| byte.is_ascii_graphic()), "{element:?}");
            assert_eq!(original(&element).as_deref(), Some(name));
        }
        let elements: HashSet<String> = STRANGE.iter().map(|name| escape(name)).collect();
        assert_eq!(elements.len(), STRANGE.len());
    }

    #[test]
    fn a_node_of_another_program_is_no_name() {
        for foreign in ["", "a%2Fb", "a%2", ".x", "%ff", "a%61", "\u{e9}"] {
            assert_eq!(original(foreign), None, "{foreign:?}");
        }
    }
}
