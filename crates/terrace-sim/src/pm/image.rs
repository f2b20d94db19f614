//! A durable image: the media's contents, as shared 4 KiB pages.
//!
//! Images are copied at every captured event and every crash; sharing unchanged pages makes that a walk
//! over pointers. A page is copied only when it is written while someone else still holds it.

use std::sync::{Arc, OnceLock};

use super::{LINE, PAGE_BYTES};

/// One page's bytes.
pub(super) type Page = [u8; PAGE_BYTES];

/// The bytes of a medium, a whole number of pages.
#[derive(Debug, Clone)]
pub(super) struct Image {
    pages: Vec<Arc<Page>>,
}

impl Image {
    /// `len` zero bytes.
    pub(super) fn zeroed(len: u64) -> Image {
        let mut image = Image { pages: Vec::new() };
        image.resize(len);
        image
    }

    pub(super) fn len(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }

    /// Cuts or zero-extends to `len` bytes, a multiple of the page size.
    pub(super) fn resize(&mut self, len: u64) {
        self.pages.resize(len as usize / PAGE_BYTES, zero_page());
    }

    pub(super) fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// The page at `index`, to be written.
    pub(super) fn page_mut(&mut self, index: usize) -> &mut Page {
        Arc::make_mut(&mut self.pages[index])
    }

    /// The content of line number `line`.
    pub(super) fn line(&self, line: u64) -> &[u8; LINE] {
        let at = line as usize * LINE;
        let page = &self.pages[at / PAGE_BYTES];
        page[at % PAGE_BYTES..].first_chunk().expect("a page holds whole lines")
    }

    /// Replaces line number `line`; a page is not copied for a line that holds `content` already.
    pub(super) fn set_line(&mut self, line: u64, content: &[u8; LINE]) {
        if self.line(line) != content {
            let at = line as usize * LINE;
            self.page_mut(at / PAGE_BYTES)[at % PAGE_BYTES..][..LINE].copy_from_slice(content);
        }
    }
}

/// The page of zeroes that all untouched pages share.
fn zero_page() -> Arc<Page> {
    static ZERO: OnceLock<Arc<Page>> = OnceLock::new();
    ZERO.get_or_init(|| Arc::new([0; PAGE_BYTES])).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_its_bytes_and_shares_what_is_unchanged() {
        let mut image = Image::zeroed(3 * PAGE_BYTES as u64);
        let before = image.clone();
        image.set_line(64, &[7; LINE]);
        assert_eq!(before.line(64), &[0; LINE]);
        assert_eq!(image.line(64), &[7; LINE]);
        assert!(Arc::ptr_eq(&before.pages()[0], &image.pages()[0]));
        assert!(!Arc::ptr_eq(&before.pages()[1], &image.pages()[1]));
        assert_eq!(image.len(), 3 * PAGE_BYTES as u64);
    }
}
