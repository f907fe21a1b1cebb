"""The page's own words in Japanese. English is the key and the text: what has no line here stays as it is.

Called by `pilotkit.report.page`. Translates whole strings only, so that nothing which a user or a stage wrote
is touched unless it is exactly one of these words. Sentences of records are quoted as they were written.
"""

from __future__ import annotations

from collections.abc import Callable

LANGUAGES = ("en", "ja")

JAPANESE = {
    # verdicts
    "Every piece of evidence that this run needs is there, and none speaks against it.": (
        "この学習に必要な証拠はすべて揃っており、反対する証拠はありません。"
    ),
    "Something that was run speaks against starting.": "実行した結果の中に、開始に反対する証拠があります。",
    "Evidence is missing. This is neither a yes nor a no.": ("証拠が不足しています。可とも否とも言えません。"),
    "Stage plan has not been run.": "plan ステージはまだ実行されていません。",
    # chapters
    "Exactly what are we running?": "何を実行するのか、正確に。",
    "Will it fit, and how fast, on hardware I do not have yet?": "手元にないハードウェアに収まるか、どれほど速いか。",
    "Does one complete step work on one accelerator?": "1 台で 1 ステップが最初から最後まで動くか。",
    "What does a representative step really cost?": "代表的な 1 ステップの実際のコストは。",
    "Are lower precision and activation checkpointing worth it, separately?": (
        "低精度と活性化チェックポインティングは、それぞれ採用に値するか。"
    ),
    "DDP or sharding, and what does communication cost?": "DDP かシャーディングか、通信のコストは。",
    "Can we really resume?": "本当に再開できるか。",
    "Is this software stack, as one set, fit for this accelerator?": (
        "このソフトウェア一式は、このアクセラレータに適格か。"
    ),
    "What does everything around the step cost?": "ステップ以外のすべてのコストは。",
    "Which hardware, how many, and which reservation: how sure, and at what cost?": (
        "どのハードウェアを何台、どの期間予約するか。確からしさと費用は。"
    ),
    "Can I show this to the person who pays?": "費用を払う人に見せられるか。",
    # page
    "What is missing": "不足しているもの",
    "The intended run": "予定している学習",
    "The evidence": "証拠",
    "Sweep": "スイープ",
    "Traceback": "トレースバック",
    "filter rows": "行を絞り込む",
    "further reasons": "その他の理由",
    "took": "所要時間",
    "Made by pilotkit.": "pilotkit が作成。",
    "Newest record started": "最新の記録の開始時刻",
    "not built in this version": "この版には含まれていません",
    "This page. Each number is followed by where it comes from, and that word leads to the record that holds it.": (
        "このページです。各数値の後に出所を示し、その語から記録へ移動できます。"
    ),
    # origins
    "measured": "実測",
    "estimated": "推定",
    "projected": "予測",
    "projected, uncalibrated": "予測(未較正)",
    "given": "指定値",
    "not run": "未実行",
    "not known": "不明",
    "none": "なし",
    "origin not recorded": "出所の記録なし",
    "read from a clock, a counter or the allocator while the run went on": (
        "実行中に時計・カウンタ・アロケータから読み取った値"
    ),
    "calculated without running": "実行せずに計算した値",
    "measured parts carried to a size or a length that was not run": "実測値を、実行していない規模や長さへ延長した値",
    "stated by whoever configured the run": "設定した人が与えた値",
    "nobody knows yet": "まだ誰も知らない値",
    # statuses and decisions
    "ok": "正常",
    "failed": "失敗",
    "does not fit": "メモリ不足",
    "mismatch": "不一致",
    "refused": "実行不可",
    "timed out": "時間切れ",
    "preempted": "中断",
    "cancelled": "取消",
    "vanished": "消失",
    "accepted": "採用",
    "rejected": "不採用",
    "open": "未定",
    "holds the run": "収まる",
    "too short": "不足",
    "enough": "十分",
    "not enough": "不十分",
    # headline and columns
    "hardware": "ハードウェア",
    "devices": "台数",
    "reservation": "予約期間",
    "run time, median": "所要時間の中央値",
    "done in time": "期間内に完了する確率",
    "over 99 %": "99 % 超",
    "under 1 %": "1 % 未満",
    "none holds it": "収まる予約なし",
    "longest": "最長",
    "target": "目標",
    "never": "終わらない",
    "cost": "費用",
    "no price given": "価格の指定なし",
    "no price": "価格なし",
    "verdict": "判定",
    "probability": "確率",
    "median": "中央値",
    "with buffer": "余裕込み",
    "available": "予約時間",
    "option": "候補",
    "decision": "採否",
    "reason": "理由",
    "egress": "転送",
    "storage": "保管",
    "energy": "電力",
    "total": "合計",
    "how": "根拠",
    "part": "項目",
    "time": "時間",
    "mean": "平均",
    "item": "項目",
    "note": "備考",
    "component": "構成要素",
    "strategy": "方式",
    "status": "状態",
    "figure": "値",
    "step": "ステップ",
    "spread": "ばらつき",
    "peak memory": "最大メモリ",
    "scaling": "スケーリング",
    "start": "起動",
    "tokens": "トークン",
    "band": "幅",
    "compute": "計算",
    "communication": "通信",
    "input": "入力",
    "goodput": "有効率",
    "what if": "仮定",
    "change": "変更",
    "alone": "単独で",
    "evaluation in": "評価したステージ",
    "loss": "損失",
    "loss gained a GPU-hour": "GPU 時間あたりの損失低下",
    # titles
    "Memory of one device": "1 台のメモリ",
    "Time of each measured step": "各ステップの時間",
    "Loss by precision": "精度ごとの損失",
    "Loss before and after the restore": "復元前後の損失",
    "Where a step goes": "1 ステップの内訳",
    "Tokens per second by strategy": "方式ごとの毎秒トークン数",
    "Further figures of each strategy": "各方式のその他の値",
    "Tokens per second by micro-batch and seq-len": "マイクロバッチと系列長ごとの毎秒トークン数",
    "The whole run, part by part": "学習全体の内訳",
    "Everything but the steps": "ステップ以外の内訳",
    "Validation quality": "検証の質",
    "Probability to be done over days": "日数に対する完了確率",
    "Every option, and why": "すべての候補とその理由",
    "What would decide the open options": "未定の候補を決めるための実行",
    "command": "コマンド",
    "What it costs": "費用の内訳",
    "If an assumption is wrong": "仮定が外れた場合",
    "What would have to change": "何を変えればよいか",
    "Speed by number of devices, fixed global batch": "台数と速度(グローバルバッチ固定)",
    "Speed by number of devices, fixed batch per device": "台数と速度(1 台あたりのバッチ固定)",
    "A step by number of devices, fixed global batch": "台数ごとの 1 ステップ(グローバルバッチ固定)",
    "A step by number of devices, fixed batch per device": "台数ごとの 1 ステップ(1 台あたりのバッチ固定)",
}


def translator(language: str) -> Callable[[str], str]:
    """What the template passes its words through. Raises KeyError for a language that is not one of `LANGUAGES`."""
    words = {"en": {}, "ja": JAPANESE}[language]

    def translate(text: str) -> str:
        return words.get(text, text)

    return translate
