//! The Redis store of distlock.
