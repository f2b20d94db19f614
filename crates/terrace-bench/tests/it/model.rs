//! The simplest store there is: a map behind a lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use terrace_bench::store::{StoreError, Visit, bounds, walk_either};
use terrace_bench::suite::Contents;
use terrace_bench::{Batch, Direction, Provider, Store, StoreResult, StoreStats};

/// Records in memory.
#[derive(Default)]
pub struct Model {
    pub records: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Store for Model {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        self.records.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        self.records.write().remove(key);
        Ok(())
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        Ok(self.records.read().get(key).map(|value| visit(value)).is_some())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        let records = self.records.read();
        let found = records.range::<[u8], _>(bounds(from, direction)).map(Ok::<_, StoreError>);
        walk_either(found, direction, |(key, value)| visit(key, value))
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        for (key, value) in batch.iter() {
            match value {
                Some(value) => self.put(key, value)?,
                None => self.delete(key)?,
            }
        }
        Ok(())
    }

    fn flush(&self) -> StoreResult<()> {
        Ok(())
    }

    fn compact(&self) -> StoreResult<()> {
        Ok(())
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// What is done to the records of a model.
pub type Tamper = fn(&mut BTreeMap<Vec<u8>, Vec<u8>>);

/// Hands out models and remembers the last.
#[derive(Default)]
pub struct Models {
    pub last: Option<Arc<Model>>,
    pub contents: Option<Contents>,
    /// Done after each workload.
    pub tamper: Option<Tamper>,
}

impl Provider for Models {
    fn fresh(&mut self) -> StoreResult<Arc<dyn Store>> {
        let model = Arc::new(Model::default());
        self.last = Some(model.clone());
        Ok(model)
    }

    fn existing(&mut self) -> StoreResult<Option<(Arc<dyn Store>, Contents)>> {
        Ok(match (&self.last, self.contents) {
            (Some(model), Some(contents)) => Some((model.clone(), contents)),
            _ => None,
        })
    }

    fn note(&mut self, contents: Contents) -> StoreResult<()> {
        self.contents = Some(contents);
        if let (Some(tamper), Some(model)) = (self.tamper, &self.last) {
            tamper(&mut model.records.write());
        }
        Ok(())
    }
}
