//! The table of every figure, and smaller ones.

use std::fmt::Write as _;

use super::{escape, number, times};
use crate::compare::results::Results;
use crate::compare::summary::{METRICS, Stat, THROUGHPUT};

/// The table of all steps of all stores: medians, sortable by every column.
pub fn figures(results: &Results) -> String {
    let base = results.baseline();
    let mut html = filters(results);
    html.push_str("<div class=\"scroll tall\"><table class=\"sorts\"><thead><tr>");
    for name in ["store", "script", "step"] {
        let _ = write!(html, "<th data-sort class=\"t\">{name}</th>");
    }
    for metric in METRICS {
        let _ = write!(html, "<th data-sort title=\"{}\">{}</th>", metric.about, metric.name);
        if metric.name == THROUGHPUT.name {
            let _ = write!(html, "<th data-sort>× {}</th><th data-sort>spread</th>", escape(base));
        }
    }
    html.push_str("</tr></thead><tbody>");
    for script in &results.scripts {
        for step in results.step_names(&script.name) {
            for (series, entrant) in results.entrants.iter().enumerate() {
                if results.steps_of(&script.name, entrant, &step).next().is_some() {
                    row(&mut html, results, &script.name, &step, series, entrant);
                }
            }
        }
    }
    html + "</tbody></table></div>"
}

fn filters(results: &Results) -> String {
    let mut html = "<div class=\"filters\">".to_string();
    let mut select = |what: &str, all: &str, names: &[String]| {
        let _ = write!(
            html,
            "<select data-filter=\"{what}\" aria-label=\"{what}\"><option value=\"\">{all}</option>"
        );
        for name in names {
            let _ = write!(html, "<option>{}</option>", escape(name));
        }
        html.push_str("</select>");
    };
    let scripts: Vec<String> = results.scripts.iter().map(|s| s.name.clone()).collect();
    select("script", "all scripts", &scripts);
    select("store", "all stores", &results.entrants);
    html + "</div>"
}

fn row(html: &mut String, results: &Results, script: &str, step: &str, series: usize, entrant: &str) {
    let (script_text, entrant_text) = (escape(script), escape(entrant));
    let _ = write!(
        html,
        "<tr data-script=\"{script_text}\" data-store=\"{entrant_text}\">\
         <td><i class=\"s{series}\"></i>{entrant_text}</td><td class=\"t\">{script_text}</td><td class=\"t\">{}</td>",
        escape(step)
    );
    for metric in METRICS {
        let stat = results.stat(script, entrant, step, metric);
        cell(html, stat.map(|s| s.median), number);
        if metric.name == THROUGHPUT.name {
            cell(html, results.ratio(script, entrant, step, results.baseline()), times);
            cell(html, stat.and_then(|s: Stat| s.spread()), |s| format!("{:.0}%", s * 100.0));
        }
    }
    html.push_str("</tr>");
}

fn cell(html: &mut String, value: Option<f64>, text: impl Fn(f64) -> String) {
    let _ = match value {
        Some(v) => write!(html, "<td data-v=\"{v:.6}\">{}</td>", escape(&text(v))),
        None => write!(html, "<td data-v=\"\">–</td>"),
    };
}

/// A plain table; the first row is its head.
pub fn plain(rows: &[Vec<String>]) -> String {
    let mut html = "<div class=\"scroll\"><table>".to_string();
    for (i, row) in rows.iter().enumerate() {
        let tag = if i == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html + "</table></div>"
}
