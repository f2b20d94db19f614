//! An example: a store of records behind HTTP, which keeps what it has acknowledged however it ends.
//!
//! ```sh
//! cargo run --release -p terrace-service -- ./db 127.0.0.1:8080
//! curl -X PUT --data 'hello' 'http://127.0.0.1:8080/records/greeting'
//! curl 'http://127.0.0.1:8080/records/greeting'
//! curl 'http://127.0.0.1:8080/records?prefix=gr&limit=10'
//! ```
//!
//! Ctrl-C or a SIGTERM ends it: it takes no more requests, answers those that it has, and closes the database.
//! Requests that take more than ten seconds then are cut off, and at once if it is asked again.

mod api;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Options};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// What requests that have begun are given to be answered.
const GRACE: Duration = Duration::from_secs(10);

/// Ends when the process is asked to.
async fn asked_to_end() {
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(e) => return eprintln!("cannot wait for a SIGTERM, and end at once: {e}"),
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Ends when requests that are still under way are to be cut off: after a while, or when the process is asked again.
async fn out_of_patience(ending: &Notify) {
    ending.notified().await;
    println!("ending: requests that have begun are answered first, for {} s at most", GRACE.as_secs());
    tokio::select! {
        () = tokio::time::sleep(GRACE) => {}
        () = asked_to_end() => {}
    }
    println!("what is still under way is cut off");
}

async fn serve(dir: &str, address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let db = Db::open(dir, Options::default())?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("{dir} at http://{}", listener.local_addr()?);
    let ending = Arc::new(Notify::new());
    let begun = ending.clone();
    let asked = async move {
        asked_to_end().await;
        begun.notify_one();
    };
    let service = axum::serve(listener, api::routes(db.clone())?).with_graceful_shutdown(asked);
    let served = tokio::select! {
        served = service => served,
        () = out_of_patience(&ending) => Ok(()),
    };
    // Nobody else has a handle that is in use.
    tokio::task::spawn_blocking(move || db.close()).await??;
    println!("closed");
    Ok(served?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (dir, address) = match &args[..] {
        [dir] => (dir, "127.0.0.1:8080"),
        [dir, address] => (dir, &**address),
        _ => {
            eprintln!("usage: terrace-service DIRECTORY [ADDRESS:PORT]");
            return ExitCode::from(2);
        }
    };
    let address = match address.parse() {
        Ok(address) => address,
        Err(e) => {
            eprintln!("{address} is no address with a port: {e}");
            return ExitCode::from(2);
        }
    };
    match serve(dir, address).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
