//! The report as a single HTML page without network access or scripts; the plots are SVG.

use std::fmt::Write;

use super::report::{Measured, QUANTILES, Report, Short};
use super::samples::Bar;
use crate::output::Line;

/// Distinguishable for colour-blind readers.
const COLOURS: [&str; 2] = ["#0072b2", "#e69f00"];
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}\
td:first-child,th:first-child{text-align:left}tr{border-bottom:1px solid #ccc}\
svg{display:block;margin:1em 0;width:100%;height:auto}text{font:11px system-ui,sans-serif}\
.note{color:#555}";
/// Dimensions of a plot.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 200.0;
const FLOOR: f64 = 34.0;

pub(super) fn page(report: &Report) -> String {
    let store = escaped(&Line(&report.store).to_string());
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tenure bench: {store}</title>\
         <style>{STYLE}</style></head><body>\n<h1>tenure bench</h1>\n<p>{store}; {} s, {} clients, leases of {} s</p>\n",
        report.length.as_secs_f64(),
        report.clients,
        report.ttl.as_secs_f64()
    );
    for part in &report.parts {
        section(&mut html, part);
    }
    html.push_str("</body></html>\n");
    html
}

fn section(html: &mut String, part: &Measured) {
    let _ = writeln!(
        html,
        "<h2>{}</h2>\n<p>{}</p>\n<table><tr><th></th><th>count</th><th>per s</th>",
        part.part,
        escaped(&part.title)
    );
    for (name, _) in QUANTILES {
        let _ = write!(html, "<th>{name}</th>");
    }
    html.push_str("</tr>\n");
    for (side, times) in part.sides() {
        let _ = write!(html, "<tr><td>{side}</td><td>{}</td><td>{:.0}</td>", times.count, times.per_second);
        for (_, quantile) in QUANTILES {
            let _ = write!(html, "<td>{}</td>", Short(times.quantile(quantile)));
        }
        html.push_str("</tr>\n");
    }
    let note = match &part.bare {
        Ok(_) => format!("bare: {}", part.what),
        Err(why) => format!("bare was not measured: {}", Line(why)),
    };
    let _ = writeln!(html, "</table>\n<p class=\"note\">{}</p>", escaped(&note));
    plot(html, &part.histograms());
}

/// Draws both histograms in one plot.
fn plot(html: &mut String, histograms: &[(&str, Vec<Bar>)]) {
    let Some((_, first)) = histograms.first() else { return };
    let most = histograms.iter().flat_map(|(_, bars)| bars).map(|bar| bar.part).fold(0.01, f64::max);
    let slot = WIDTH / first.len() as f64;
    let bar_width = slot * 0.8 / histograms.len() as f64;
    let _ = write!(html, "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">", HEIGHT + FLOOR);
    for (side, ((name, bars), colour)) in histograms.iter().zip(COLOURS).enumerate() {
        for (row, bar) in bars.iter().enumerate() {
            let height = bar.part / most * (HEIGHT - 20.0);
            let x = row as f64 * slot + slot * 0.1 + side as f64 * bar_width;
            let y = HEIGHT - height;
            let _ = write!(
                html,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar_width:.1}\" height=\"{height:.1}\" fill=\"{colour}\">\
                 <title>{name}: {:.1} % up to {}</title></rect>",
                bar.part * 100.0,
                Short(bar.up_to)
            );
        }
        let x = side as f64 * 80.0;
        let _ = write!(
            html,
            "<rect x=\"{x}\" y=\"0\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"10\">{name}</text>",
            x + 14.0
        );
    }
    let every = first.len().div_ceil(16);
    for (row, bar) in first.iter().enumerate().step_by(every) {
        let x = (row as f64 + 0.5) * slot;
        let _ = write!(
            html,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT + 16.0,
            Short(bar.up_to)
        );
    }
    let _ = writeln!(html, "<path d=\"M0 {HEIGHT}H{WIDTH}\" stroke=\"#888\"/></svg>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
