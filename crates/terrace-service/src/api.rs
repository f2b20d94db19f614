//! The requests and their answers.
//!
//! | request | answer |
//! |---|---|
//! | `GET /records/{key}` | 200 and the value, or 404 |
//! | `PUT /records/{key}` | 204 once the value is durable; with `?ttl=60` it is there for so many seconds |
//! | `PUT /records/{key}?if_absent=true` | the same, or 409 if there is one |
//! | `DELETE /records/{key}` | 204 |
//! | `GET /records?prefix=P&after=K&limit=N` | 200 and JSON: keys with the lengths of their values, and where to go on |
//! | `GET /health` | 200, or 503 with the reason if nothing can be written any more |
//!
//! A handler runs the store's calls on a thread that may wait: writes wait for the disk.

use std::ops::Bound;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use terrace::{Db, ErrorKind, Expiry, Keyspace, KeyspaceOptions, WriteOptions};

/// Most keys in one answer.
const MOST_KEYS: usize = 1000;

/// Most bytes of a value that is taken.
const MOST_BYTES: usize = 16 << 20;

/// What handlers share.
#[derive(Debug, Clone)]
struct Records {
    db: Db,
    records: Keyspace,
}

/// Why a request fails.
struct Failure(terrace::Error);

impl From<terrace::Error> for Failure {
    fn from(error: terrace::Error) -> Self {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
            ErrorKind::NoSpace | ErrorKind::PoolFull => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Closed | ErrorKind::Poisoned => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{}\n", self.0)).into_response()
    }
}

type Answer<T> = Result<T, Failure>;

/// Runs `work` on a thread that may wait. It goes on if whoever has asked goes away.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> terrace::Result<T> + Send + 'static,
) -> Answer<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => Ok(outcome?),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// The routes over `db`.
///
/// # Errors
///
/// Those of making a keyspace.
pub fn routes(db: Db) -> terrace::Result<Router> {
    let options = KeyspaceOptions { expiry: Some(Expiry::ByEntry), ..KeyspaceOptions::default() };
    let records = db.keyspace_with("records", options)?;
    let record = get(read).put(write).delete(remove);
    Ok(Router::new()
        .route("/records/{*key}", record)
        .route("/records", get(list))
        .route("/health", get(health))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(Records { db, records }))
}

async fn read(State(state): State<Records>, Path(key): Path<String>) -> Answer<Response> {
    let found = blocking(move || state.records.get(key)).await?;
    Ok(found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response))
}

/// How a record is written.
#[derive(Debug, Deserialize)]
struct Put {
    /// Seconds that it is there; for good if there are none.
    ttl: Option<u64>,
    #[serde(default)]
    if_absent: bool,
}

async fn write(
    State(state): State<Records>,
    Path(key): Path<String>,
    Query(put): Query<Put>,
    value: Bytes,
) -> Answer<Response> {
    if put.if_absent && put.ttl.is_some() {
        let why = "a record that is written only if it is absent has no ttl\n";
        return Ok((StatusCode::BAD_REQUEST, why).into_response());
    }
    let is_written = blocking(move || {
        let is_written = match put.ttl {
            Some(seconds) => {
                state.records.put_with_ttl(&key, &value, Duration::from_secs(seconds)).map(|()| true)?
            }
            None if put.if_absent => state.records.put_if_absent(&key, &value)?,
            None => state.records.put_with(&key, &value, WriteOptions::default()).map(|()| true)?,
        };
        // Acknowledged is durable: writers that wait at the same time share a sync.
        state.db.sync().map(|()| is_written)
    })
    .await?;
    Ok(if is_written { StatusCode::NO_CONTENT } else { StatusCode::CONFLICT }.into_response())
}

async fn remove(State(state): State<Records>, Path(key): Path<String>) -> Answer<StatusCode> {
    blocking(move || state.records.delete_with(key, WriteOptions::SYNC)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which keys are listed.
#[derive(Debug, Deserialize)]
struct Wanted {
    #[serde(default)]
    prefix: String,
    /// The key to go on behind.
    after: Option<String>,
    limit: Option<usize>,
}

/// A page of keys.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    pub records: Vec<Listed>,
    /// Where the next page begins, if there may be one: its `after`.
    pub next: Option<String>,
}

/// A key and the length of its value.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub key: String,
    pub bytes: usize,
}

async fn list(State(state): State<Records>, Query(wanted): Query<Wanted>) -> Answer<Json<Page>> {
    blocking(move || page(&state.records, &wanted)).await.map(Json)
}

fn page(records: &Keyspace, wanted: &Wanted) -> terrace::Result<Page> {
    let limit = wanted.limit.unwrap_or(100).min(MOST_KEYS);
    let prefix = &wanted.prefix;
    let after = wanted.after.as_ref().filter(|after| *after >= prefix);
    let from = after.map_or(Bound::Included(&**prefix), |after| Bound::Excluded(&**after));
    let mut page = Page { records: Vec::new(), next: None };
    for entry in records.range((from, Bound::Unbounded))? {
        let (key, value) = entry?;
        // Keys come from addresses, which are text.
        let key = String::from_utf8_lossy(&key).into_owned();
        if !key.starts_with(&**prefix) {
            break;
        }
        if page.records.len() == limit {
            page.next = page.records.last().map(|last| last.key.clone());
            break;
        }
        page.records.push(Listed { key, bytes: value.len() });
    }
    Ok(page)
}

async fn health(State(state): State<Records>) -> Answer<&'static str> {
    blocking(move || state.db.sync()).await?;
    Ok("in order\n")
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use terrace::Options;
    use tower::ServiceExt;

    use super::*;

    /// The status and the body of the answer to a request.
    async fn ask(db: &Db, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
        let response = routes(db.clone()).unwrap().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn records_are_written_read_listed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        assert_eq!(ask(&db, "GET", "/records/a", "").await.0, 404);
        for key in ["a/1", "a/2", "a/3", "b"] {
            assert_eq!(ask(&db, "PUT", &format!("/records/{key}"), "value").await.0, 204);
        }
        assert_eq!(ask(&db, "GET", "/records/a/1", "").await, (200, "value".into()));
        assert_eq!(ask(&db, "PUT", "/records/a/1?if_absent=true", "other").await.0, 409);
        assert_eq!(ask(&db, "PUT", "/records/c?if_absent=true", "new").await.0, 204);
        let (status, body) = ask(&db, "GET", "/records?prefix=a/&limit=2", "").await;
        let first: Page = serde_json::from_str(&body).unwrap();
        assert_eq!((status, first.records.len(), first.next.as_deref()), (200, 2, Some("a/2")));
        let (_, body) = ask(&db, "GET", "/records?prefix=a/&limit=2&after=a/2", "").await;
        let last: Page = serde_json::from_str(&body).unwrap();
        assert_eq!(last, Page { records: vec![Listed { key: "a/3".into(), bytes: 5 }], next: None });
        assert_eq!(ask(&db, "DELETE", "/records/a/1", "").await.0, 204);
        assert_eq!(ask(&db, "GET", "/records/a/1", "").await.0, 404);
        assert_eq!(ask(&db, "PUT", "/records/brief?ttl=0", "x").await.0, 204);
        assert_eq!(ask(&db, "GET", "/records/brief", "").await.0, 404);
        assert_eq!(ask(&db, "GET", "/health", "").await, (200, "in order\n".into()));
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        let long = format!("/records/{}", "k".repeat(60_000));
        assert_eq!(ask(&db, "PUT", &long, "value").await.0, 204);
        assert_eq!(ask(&db, "PUT", "/records/a?ttl=1&if_absent=true", "v").await.0, 400);
        assert_eq!(ask(&db, "PUT", "/records/a?ttl=soon", "v").await.0, 400);
        let large = "v".repeat(MOST_BYTES + 1);
        assert_eq!(ask(&db, "PUT", "/records/a", &large).await.0, 413);
        assert_eq!(ask(&db, "GET", "/records/a", "").await.0, 404);
    }

    /// A process that ends and another that begins: what was acknowledged is there.
    #[tokio::test]
    async fn what_was_acknowledged_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let db = Db::open(dir.path(), Options::default()).unwrap();
            for earlier in 0..life {
                let found = ask(&db, "GET", &format!("/records/{earlier}"), "").await;
                assert_eq!(found, (200, format!("of life {earlier}")));
            }
            let put = ask(&db, "PUT", &format!("/records/{life}"), &format!("of life {life}")).await;
            assert_eq!(put.0, 204);
            db.close().unwrap();
            assert_eq!(ask_closed(&db).await, 503);
        }
    }

    async fn ask_closed(db: &Db) -> u16 {
        match routes(db.clone()) {
            Ok(routes) => {
                let request = Request::builder().uri("/health").body(Body::empty()).unwrap();
                routes.oneshot(request).await.unwrap().status().as_u16()
            }
            Err(e) => Failure(e).into_response().status().as_u16(),
        }
    }
}
