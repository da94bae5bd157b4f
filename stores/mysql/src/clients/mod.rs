//! Clients of the application that tell a store where its server is.

mod sqlx_pool;
