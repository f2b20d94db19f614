//! How the service ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Sends SIGTERM.
fn ask_to_end(service: &Child) {
    let sent = Command::new("kill").args(["-TERM", &service.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// Must catch a client that keeps the service from ending by never ending its request, and an end that leaves the
/// database unclosed.
#[test]
fn a_request_that_never_ends_does_not_hold_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Command::new(env!("CARGO_BIN_EXE_terrace-service"))
        .arg(dir.path())
        .arg("127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(service.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();

    let mut whole = TcpStream::connect(&address).unwrap();
    whole
        .write_all(
            b"PUT /records/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        )
        .unwrap();
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");

    let mut endless = TcpStream::connect(&address).unwrap();
    endless.write_all(b"PUT /records/b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhel").unwrap();
    ask_to_end(&service);
    line.clear();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("ending"), "{line}");
    ask_to_end(&service);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(service.wait().unwrap().success());
    assert!(rest.ends_with("closed\n"), "{rest}");
    let db = terrace::Db::open(dir.path(), terrace::Options::default()).unwrap();
    let records = db.keyspace("records").unwrap();
    assert_eq!(records.get("a").unwrap().as_deref(), Some(&b"hello"[..]));
    assert_eq!(records.get("b").unwrap(), None);
}
