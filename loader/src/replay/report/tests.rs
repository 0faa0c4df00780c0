//! Pages of replays that are made up.

use super::*;
use crate::{
    curriculum::RampReport,
    replay::{Difficulty, MachineReads, SourceReplay, Stretch, Tokens},
};

const OPTIONS: &str = r#"{"batch_size": 256, "curriculum": {"column": "loss", "pacing": {"linear": {"start": 0.1}}},
    "seed": 7, "shuffle": "windowed", "tail": null, "weights": [0.5, 0.3, 0.2]}"#;
const HOSTILE: &str = "</style><script>alert(1)</script> \" onload='x' \u{202e}\0 ]]> &lt;";

fn world(first_step: u64, steps: u64, ranks: u32, machines: u32) -> WorldReplay {
    let reads = (0..machines).map(|machine| MachineReads {
        machine,
        row_groups: 120 + u64::from(machine % 3),
        bytes: 3 << 30,
        foreign_row_groups: u64::from(machine % 2),
        foreign_bytes: u64::from(machine % 2) << 24,
    });
    WorldReplay {
        first_step,
        steps,
        world_size: ranks,
        machines,
        rows_per_rank: (0..u64::from(ranks)).map(|rank| steps * 32 + u64::from(rank < 3 && steps > 0)).collect(),
        tokens_per_rank: Vec::new(),
        empty_slices: 0,
        reads: reads.collect(),
        read_amplification: 1.0625,
    }
}

/// An epoch of `steps` in `stretches`, exactly once, by 8 ranks.
fn plain(steps: u64, stretches: u64) -> Replay {
    let at = |i: u64| (u128::from(steps) * u128::from(i) / u128::from(stretches.max(1))) as u64;
    let of = |i: u64| Stretch {
        first_step: at(i),
        steps: at(i + 1) - at(i),
        samples: (at(i + 1) - at(i)) * 256,
        difficulty: None,
        classes: Vec::new(),
        sources: Vec::new(),
        tokens: 0,
        padded: 0,
    };
    Replay {
        epoch: 3,
        rows: steps * 256,
        filtered: 0,
        exactly_once: true,
        at_most_once: true,
        delivered: steps * 256,
        dropped: 0,
        missing: 0,
        repeated: 0,
        steps_per_rank: steps,
        worlds: vec![world(0, steps, 8, 2)],
        sources: Vec::new(),
        tokens: None,
        pacing: None,
        classes: Vec::new(),
        stretches: if steps == 0 { Vec::new() } else { (0..stretches).map(of).collect() },
    }
}

/// A mix of three sources by a curriculum, with classes; two worlds.
fn mixed(steps: u64, stretches: u64) -> Replay {
    let mut replay = plain(steps, stretches);
    let source = |split: &str, rows, draws, passes, asked| SourceReplay {
        split: split.into(),
        rows,
        draws,
        passes,
        share: draws as f64 / replay.delivered as f64,
        asked,
    };
    replay.sources = vec![
        source("web", 400_000, replay.delivered / 2, 0, 0.5),
        source("code", 20_000, replay.delivered * 3 / 10, 3, 0.3),
        source("books", 10_000, replay.delivered / 5, 4, 0.2),
    ];
    replay.worlds = vec![world(0, steps / 2, 8, 2), world(steps / 2, steps - steps / 2, 16, 4)];
    replay.classes = (0..12).map(|class| class * 7 - 3).collect();
    replay.pacing = Some(RampReport {
        levels: 40,
        requested_steps: 2 * steps,
        used_steps: steps,
        widened_rows: 125,
        widened_share: 0.01,
    });
    for (i, stretch) in (0_u64..).zip(&mut replay.stretches) {
        let (part, n) = (i as f64 / stretches as f64, stretch.samples);
        stretch.difficulty = Some(Difficulty { min: 0.02, mean: 0.1 + 1.1 * part, max: 0.4 + 3.0 * part });
        stretch.sources =
            if 2 * i < stretches { vec![n / 2, n * 3 / 10, n / 5] } else { vec![n * 2 / 5, n * 2 / 5, n / 5] };
        stretch.classes = (0..13).map(|class| n / (class + 3 + (i * class) % 5)).collect();
    }
    replay
}

/// A token budget over 64 ranks.
fn budget(steps: u64, stretches: u64) -> Replay {
    let mut replay = plain(steps, stretches);
    let mut world = world(0, steps, 64, 8);
    world.tokens_per_rank = (0..64).map(|rank| 41_000_000 + 350_000 * (rank * 37 % 11)).collect();
    replay.tokens = Some(Tokens {
        real: 2_700_000_000,
        padded: 2_850_000_000,
        padding: 0.0556,
        imbalance_mean: 0.021,
        imbalance_worst: 0.34,
        dropped: 0,
    });
    replay.worlds = vec![world];
    for (i, stretch) in (0_u64..).zip(&mut replay.stretches) {
        stretch.tokens = 60_000_000;
        stretch.padded = 60_000_000 + 2_000_000 * (1 + i * 7 % 5);
    }
    replay
}

fn page_of(replay: &Replay, options: &str, column: &str) -> String {
    let some = Some(column);
    let fingerprint = "9f3c0c1d8f7b4f4e8f0e";
    let input = PageInput {
        fingerprint,
        options_json: options,
        replay,
        class_name: some,
        difficulty_name: some,
        lengths_name: some,
    };
    let page = render(&input).unwrap();
    check(&page);
    page
}

fn page(replay: &Replay) -> String {
    page_of(replay, OPTIONS, "loss")
}

/// What every page must be: its tags closed in order, nothing to fetch or run, and small.
fn check(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let tag_name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        match tag {
            _ if tag.starts_with('!') || tag.ends_with('/') || ["meta", "br"].contains(&tag_name) => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(tag_name)),
            _ => open.push(tag_name),
        }
        assert!(!["script", "img", "link", "iframe", "object"].contains(&tag_name), "{tag}");
        let attributes: String = tag.split('"').step_by(2).collect();
        assert!(![" src=", " href=", " on"].iter().any(|bad| attributes.contains(bad)), "{tag}");
        assert!(tag_name != "p" || !open[..open.len() - 1].contains(&"p"), "a paragraph in a paragraph");
    }
    assert!(open.is_empty(), "{open:?}");
    for bad in ["NaN", "url(", "@import"] {
        assert!(!page.contains(bad), "{bad}");
    }
    let addresses = page.matches("http").count() - page.matches("http-equiv").count();
    assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    let pictures = page.matches("<svg").count();
    assert_eq!(page.matches("<div role=\"img\" aria-label=\"").count(), pictures);
    assert_eq!(page.matches("<figcaption>").count(), pictures);
    let unseen = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!page.contains(unseen), "{:?}", page.find(unseen));
}

/// Headings of the second order.
fn headings(page: &str) -> Vec<&str> {
    page.split("<h2>").skip(1).filter_map(|part| Some(part.split_once("</h2>")?.0)).collect()
}

#[test]
fn a_plain_plan_has_no_parts_that_do_not_apply() {
    let mut replay = plain(500, 40);
    let page = page(&replay);
    assert!(page.contains("<div class=\"verdict\"><b>Every row exactly once: nothing missing, nothing repeated.</b>"));
    assert_eq!(headings(&page), ["Options", "Coverage", "Worlds", "Reads of each machine", "Ranks"]);
    for text in [
        "<td class=\"t\">curriculum.pacing.linear.start</td><td class=\"t\">0.1</td>",
        "<td class=\"t\">tail</td><td class=\"t\">none</td>",
        "<td class=\"t\">weights</td><td class=\"t\">[0.5,0.3,0.2]</td>",
        "<b>128,000</b><span>samples delivered</span>",
        "<td>16,000</td><td>16,001</td><td>0</td><td>1.062</td>",
        "<td>120</td><td>3.0 GiB</td>",
        "Rows of each rank: 16,000 to 16,001; the line is their mean, 16,000.38.",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    replay.dropped = 77;
    replay.filtered = 1;
    let page = self::page(&replay);
    assert!(
        page.contains("exactly once, but for 77 dropped with the tail: nothing") && page.contains("1 row left out")
    );
    assert_eq!(page, self::page(&replay.clone()), "the same replay gives the same bytes");
}

#[test]
fn a_mix_shows_its_course() {
    let replay = mixed(2000, 40);
    let page = page(&replay);
    let parts = headings(&page);
    assert_eq!(parts[4..], ["Ranks", "Difficulty: loss", "Classes: loss", "Sources", "Pacing"]);
    assert!(page.contains("Every row exactly once in its pass") && page.contains("<h3>World 1, from step 1,000</h3>"));
    for text in ["<td>4,000</td></tr>", "0–49", "1,950–1,999", "0: web", "all others", "<td>30.00 %</td>"] {
        assert!(page.contains(text), "{text}");
    }
    // Each class, the others and each source have a band, and the difficulty one.
    assert_eq!(page.matches("<polygon").count(), 13 + 3 + 1);
    assert_eq!(page.matches("class=\"key\"").count(), 13 + 3);
    assert_eq!(page.matches("data-c=\"4\"").count(), 1);
}

#[test]
fn a_token_budget_shows_its_padding() {
    let replay = budget(3000, 40);
    assert!((course::padding(&replay.stretches[0]) - 100.0 / 31.0).abs() < 1e-9);
    let page = page(&replay);
    assert_eq!(headings(&page)[4..], ["Ranks", "Tokens"]);
    for text in
        ["5.56 %", "34.00 %", "2,700,000,000", "Tokens of each rank: 41,000,000 to 44,500,000; the line", "padding, %"]
    {
        assert!(page.contains(text), "{text}");
    }
    let bars = page.split("Bars of the tokens").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(bars.matches("fill=\"#0072B2\"").count(), 64);
}

#[test]
fn an_empty_epoch_has_a_page() {
    let page = page(&plain(0, 40));
    assert!(page.contains("The epoch is empty") && !page.contains("<svg"));
    let mut none = plain(0, 0);
    none.worlds.clear();
    assert!(self::page(&none).contains("<b>0</b><span>worlds</span>"));
    let mut tail = plain(0, 1);
    tail.dropped = 5;
    assert!(self::page(&tail).contains("but for 5 dropped with the tail"));
}

#[test]
fn what_is_broken_is_said() {
    let mut replay = plain(500, 40);
    replay.missing = 3;
    let page = page(&replay);
    assert!(page.contains("<div class=\"verdict bad\"><b>The plan is BROKEN: 3 missing, none repeated.</b>"));
    assert!(page.contains("rows that were due and not delivered: 3") && !page.contains("nothing missing"));
    (replay.missing, replay.repeated) = (0, 1200);
    assert!(self::page(&replay).contains("BROKEN: none missing, 1,200 repeated."));
    // Where repeats are what was asked for they are no fault.
    replay.exactly_once = false;
    replay.missing = 40;
    let page = self::page(&replay);
    assert!(page.contains(
        "verdict facts\"><b>Rows are drawn, not dealt: 126,800 distinct rows, 1,200 repeated, 40 never drawn."
    ));
    assert!(!page.contains("BROKEN") && page.contains("never drawn</td>"));
}

#[test]
fn hostile_names_are_text() {
    let mut replay = mixed(100, 7);
    replay.tokens = budget(10, 1).tokens;
    replay.sources.iter_mut().for_each(|source| source.split = HOSTILE.into());
    let options = serde_json::json!({ HOSTILE: { HOSTILE: [HOSTILE] } }).to_string();
    let input = page_of(&replay, &options, HOSTILE);
    assert!(input.contains("&lt;script&gt;alert(1)") && input.contains("\\u{202e}"));
    let input = PageInput {
        fingerprint: HOSTILE,
        options_json: "{}",
        replay: &replay,
        class_name: None,
        difficulty_name: None,
        lengths_name: None,
    };
    check(&render(&input).unwrap());
    assert!(render(&PageInput { options_json: "{", ..input }).is_err());
}

#[test]
fn whatever_is_replayed_gives_a_small_page() {
    let mut replay = mixed(1_000_000, 2_000);
    replay.worlds = (0..400).map(|i| world(i * 10, 10, 4096, 512)).collect();
    replay
        .worlds
        .iter_mut()
        .for_each(|world| world.tokens_per_rank = (0..4096).map(|i| (1 << 50) - i * 7919).collect());
    let quotes = "\"".repeat(1_000);
    replay.sources = vec![SourceReplay { split: quotes.clone(), ..replay.sources[0].clone() }; 3_000];
    replay.classes = (0..299).map(|i| i64::MIN + i).collect();
    replay.tokens = Some(Tokens { real: u64::MAX, padded: u64::MAX, ..Tokens::default() });
    for (i, stretch) in (0_u64..).zip(&mut replay.stretches) {
        stretch.classes = vec![u64::MAX / 300 / 2_000 - 987_654_321 * (i % 999); 300];
        stretch.sources = (0..300).map(|n| 1 + (i * n) % 977).collect();
        (stretch.tokens, stretch.padded) = (1 + i % 7, u64::MAX / 2_000 - i);
        let odd = (i as f64).sin() * 1e15;
        stretch.difficulty = Some(Difficulty { min: odd - 1e14, mean: odd, max: odd + 1e14 });
    }
    let options = Value::from_iter((0..5_000).map(|i| (format!("{quotes}{i}"), quotes.clone())));
    let page = page_of(&replay, &options.to_string(), &quotes);
    for text in ["and 4,950 more.", "and 350 more.", "and 204,750 more.", "and 2,950 more.", "397 more worlds"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.len() > 200_000, "{} bytes: is everything there?", page.len());
    assert!(page.contains("Each bar stands for 43 ranks") && page.contains("A stretch is of up to 20,000 steps."));
}

#[test]
fn numbers_that_are_none_do_no_harm() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 0.0] {
        let mut replay = mixed(10, 4);
        replay.tokens =
            Some(Tokens { real: 0, padded: 9, padding: odd, imbalance_mean: odd, imbalance_worst: odd, dropped: 0 });
        replay.pacing.as_mut().unwrap().widened_share = odd;
        replay.worlds.iter_mut().for_each(|world| world.read_amplification = odd);
        replay.sources.iter_mut().for_each(|source| (source.share, source.asked) = (odd, odd));
        for stretch in &mut replay.stretches {
            stretch.difficulty = Some(Difficulty { min: odd, mean: odd, max: odd });
            (stretch.first_step, stretch.steps) = (u64::MAX, u64::MAX);
        }
        page(&replay);
    }
}

#[test]
fn joined_stretches_lose_nothing() {
    let replay = mixed(1_000, 123);
    let input = PageInput {
        fingerprint: "",
        options_json: "{}",
        replay: &replay,
        class_name: None,
        difficulty_name: None,
        lengths_name: None,
    };
    let course = Course::new(&input);
    let sums = |stretches: &[Stretch]| {
        let sum = |of: fn(&Stretch) -> u64| stretches.iter().map(of).sum::<u64>();
        [sum(|s| s.samples), sum(|s| s.steps), sum(|s| s.classes[12]), sum(|s| s.sources[1])]
    };
    let (joined, edges) = (course.stretches.as_slice(), course.edges.as_slice());
    assert_eq!((joined.len(), sums(joined)), (41, sums(&replay.stretches)));
    assert_eq!((edges.first(), edges.last(), edges.len()), (Some(&0), Some(&1_000), 42));
    assert!(edges.is_sorted_by(|a, b| a < b));
    let mean = |stretches: &[Stretch]| {
        let of = stretches.iter().map(|s| s.difficulty.unwrap().mean * s.samples as f64);
        of.sum::<f64>() / replay.delivered as f64
    };
    assert!((mean(joined) - mean(&replay.stretches)).abs() < 1e-9);
}
