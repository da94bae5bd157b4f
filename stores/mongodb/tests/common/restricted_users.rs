//! A server with authentication, and users with few rights.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;

use distlock_testkit::servers::MongoServer;
use distlock_testkit::servers::mongodb::bson::Document as Command;
use mongodb::bson::{Document, doc};

pub fn auth_server() -> &'static MongoServer {
    static SERVER: OnceLock<MongoServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = MongoServer::configure().args(["--auth"]).start();
        let user = |name: &str, role: Command| {
            Command::new("createUser", name).with("pwd", "s3cret").with("roles", vec![role])
        };
        // From the same machine the first user can be created without a login.
        let root = user("root", Command::new("role", "root").with("db", "admin"));
        server.command("admin", &root).unwrap();
        server
    })
}

pub fn auth_url(user: &str, password: &str, database: &str) -> String {
    format!(
        "mongodb://{user}:{password}@{}/{database}?authSource=admin&directConnection=true",
        auth_server().addr()
    )
}

/// A user with these rights on the collections of a database.
pub async fn user_with(name: &str, database: &str, actions: &[(&str, &[&str])]) {
    let admin =
        mongodb::Client::with_uri_str(auth_url("root", "s3cret", "admin")).await.unwrap().database("admin");
    let privileges: Vec<Document> = actions
        .iter()
        .map(|(collection, actions)| {
            doc! { "resource": { "db": database, "collection": *collection }, "actions": actions.to_vec() }
        })
        .collect();
    admin.run_command(doc! { "createRole": name, "privileges": privileges, "roles": [] }).await.unwrap();
    admin.run_command(doc! { "createUser": name, "pwd": "s3cret", "roles": [name] }).await.unwrap();
}
