//! The options of the file store: typed, and as parameters of a URL.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use distlock_core::store::url::Host;
use distlock_core::store::{StoreUrl, UrlOption};
use distlock_core::{Error, ErrorKind, Result};

/// The users that may use the locks of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// The owner only: folders 0700, files 0600. The default.
    #[default]
    Private,
    /// Also the members of the folder's group: folders 2770, files 0660.
    Group,
}

/// How waiters learn that a lock is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wakeups {
    /// From the kernel (inotify) on local file systems; by polling elsewhere, since inotify does not see what other
    /// machines do. The default.
    #[default]
    Auto,
    /// By polling only, with a backoff from 2 ms to 100 ms.
    Poll,
}

/// The folder of the lock files, its access rights, and how waiters are woken.
///
/// ```
/// use distlock_file::{Access, FileConfig, FileStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_core::Result<()> {
/// let config = FileConfig::new("/var/lib/app/locks").access(Access::Group);
/// let store = FileStore::connect(config).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    pub(crate) dir: PathBuf,
    pub(crate) access: Access,
    pub(crate) wakeups: Wakeups,
}

pub(crate) const SCHEMES: &[&str] = &["file"];

/// The `distlock.` options of a URL.
pub(crate) const URL_OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: "access",
        value: "private|group",
        default: "private",
        meaning: "the users that may use the locks: the owner, or also the members of the folder's group",
    },
    UrlOption {
        name: "wakeups",
        value: "auto|poll",
        default: "auto",
        meaning: "how waiters learn that a lock is free: from the kernel on local file systems, or by polling only",
    },
];

impl FileConfig {
    /// Lock files in this folder, private to the user. The folder is created on first use.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        FileConfig { dir: dir.into(), access: Access::default(), wakeups: Wakeups::default() }
    }

    /// Lock files in the default folder of this user: `$XDG_STATE_HOME/distlock`, or `~/.local/state/distlock`. Without
    /// `HOME`, the home folder is that of the user database.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if neither `XDG_STATE_HOME` nor the user's home folder is an absolute path.
    pub fn user_default() -> Result<Self> {
        // Without `HOME`, as in a system service, this asks the user database.
        let home = std::env::home_dir().map(PathBuf::into_os_string);
        user_dir(std::env::var_os("XDG_STATE_HOME"), home).map(FileConfig::new)
    }

    /// Sets which users may use the locks.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets how waiters are woken.
    #[must_use]
    pub fn wakeups(mut self, wakeups: Wakeups) -> Self {
        self.wakeups = wakeups;
        self
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads a URL: `file:` or `file:///dir`, with `distlock.access=private|group` and
    /// `distlock.wakeups=auto|poll`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a host, a relative path or an unknown parameter.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(SCHEMES)?;
        let access = match url.take_word("access", &["private", "group"])? {
            Some("group") => Access::Group,
            _ => Access::Private,
        };
        let wakeups = match url.take_word("wakeups", &["auto", "poll"])? {
            Some("poll") => Wakeups::Poll,
            _ => Wakeups::Auto,
        };
        url.refuse_other_options(URL_OPTIONS)?;
        url.refuse_unknown_driver(&[])?;
        let path = url.file_path()?;
        let config = if !url.has_authority() && path.as_os_str().is_empty() {
            FileConfig::user_default()?
        } else {
            check_local(&url)?;
            if !path.is_absolute() {
                return Err(refuse(&url, "its path is not absolute"));
            }
            FileConfig::new(path)
        };
        Ok(config.access(access).wakeups(wakeups))
    }
}

const SPELLING: &str =
    "write file: for the default folder of this user, or file:///var/lock/app for another one";

fn refuse(url: &StoreUrl, what: &str) -> Error {
    url.refuse(what).advise(SPELLING)
}

fn check_local(url: &StoreUrl) -> Result<()> {
    let authority = url.authority()?;
    let is_localhost =
        |host: &Host| matches!(host, Host::Name(name) if name.eq_ignore_ascii_case("localhost"));
    let is_local = authority.login.is_none()
        && authority.servers.iter().all(|server| is_localhost(&server.host) && server.port.is_none());
    if is_local { Ok(()) } else { Err(refuse(url, "it names a host, and files are local")) }
}

/// The default folder of a user. The XDG specification says to ignore a value that is not an absolute path.
fn user_dir(state_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(state_home)
        .or_else(|| absolute(home).map(|home| home.join(".local/state")))
        .map(|state| state.join(OsStr::new("distlock")))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "there is no default folder for lock files: neither XDG_STATE_HOME nor HOME is an absolute path, and the user \
                 has no home folder otherwise",
            )
            .doing("find the default folder of the file store")
            .advise("set HOME, or name a folder with file:///dir")
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(text: &str) -> Result<FileConfig> {
        FileConfig::from_url(&StoreUrl::parse(text)?)
    }

    #[test]
    fn the_default_folder_follows_the_xdg_rules() {
        let dir =
            |xdg: &str, home: Option<&str>| user_dir(Some(xdg.into()), home.map(OsString::from)).unwrap();
        assert_eq!(dir("/s", Some("/h")), Path::new("/s/distlock"));
        assert_eq!(dir("relative", Some("/h")), Path::new("/h/.local/state/distlock"));
        assert_eq!(dir("", Some("/h")), Path::new("/h/.local/state/distlock"));
        for home in [None, Some(OsString::new()), Some("x".into())] {
            let error = user_dir(None, home).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("HOME"), "{error}");
        }
    }

    #[test]
    fn a_path_is_percent_decoded_and_may_contain_any_byte_but_nul() {
        assert_eq!(parse("file:///a%20b/c").unwrap().dir(), Path::new("/a b/c"));
        assert_eq!(parse("file:/x").unwrap().dir(), Path::new("/x"));
        assert_eq!(parse("file:///home/me@work").unwrap().dir(), Path::new("/home/me@work"));
        assert_eq!(parse("FILE://localhost/x").unwrap().dir(), Path::new("/x"));
        let bytes = parse("file:///%ff%3f").unwrap().dir().as_os_str().to_owned().into_vec();
        assert_eq!(bytes, b"/\xff?");
    }

    #[test]
    fn hosts_relative_paths_and_unknown_parameters_are_refused_with_advice() {
        for bad in [
            "file://server/dir",
            "file://dir",
            "file://",
            "file:dir",
            "file:./dir",
            "file:///a%00b",
            "file:///a#b",
            "file:///a?mode=1",
            "file:?x",
            "file:///a?distlock.mode=0600",
            "file:///a?distlock.access=all",
            "file:?distlock.wakeups=never",
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(error.advice().is_some(), "{bad}: {error}");
        }
    }

    #[test]
    fn every_url_option_reaches_the_configuration() {
        let config = parse("file:///a?distlock.access=group&distlock.wakeups=poll").unwrap();
        assert_eq!(config, FileConfig::new("/a").access(Access::Group).wakeups(Wakeups::Poll));
    }
}
