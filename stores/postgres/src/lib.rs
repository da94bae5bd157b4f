//! The PostgreSQL stores of distlock.
