"""What the simulated endpoint of `fault_server` replies: a function of the request alone."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

# Every turn of a dialogue has words of its own, so that no utterance can repeat an earlier one.
WORDS = [
    "早饭 豆浆 油条 馒头 咸菜 鸡蛋 米粥 包子", "地铁 公交 单车 堵车 迟到 打卡 换乘 末班",
    "加班 开会 周报 方案 客户 老板 工资 请假", "猫咪 狗狗 仓鼠 遛弯 猫粮 铲屎 打针 绝育",
    "下雨 降温 台风 晒衣 雨伞 雾霾 秋裤 暖气", "火锅 毛肚 虾滑 蘸料 麻酱 香菜 啤酒 锅底",
    "房租 押金 中介 搬家 合租 水电 装修 邻居", "手机 充电 屏幕 流量 相册 闹钟 换机 耳机",
    "电影 票价 座位 爆米 字幕 彩蛋 导演 首映", "跑步 膝盖 操场 汗水 球鞋 减脂 体重 拉伸",
    "考试 复习 教室 卷子 分数 挂科 补考 背书", "旅行 机票 酒店 行李 攻略 海边 爬山 拍照",
    "快递 驿站 退货 拆箱 优惠 尾款 凑单 包邮", "唱歌 吉他 鼓点 嗓子 麦霸 演出 排练 歌词",
    "医生 挂号 牙疼 吃药 体检 熬夜 失眠 头发", "菜价 番茄 土豆 白菜 排骨 炖汤 切菜 洗碗",
    "游戏 排位 队友 掉线 皮肤 通关 手柄 开黑", "毕业 同学 聚会 合影 婚礼 份子 伴娘 红包",
]  # fmt: skip
SLOTS = [group.split() for group in WORDS]
ENDINGS = ("", "吧", "呢", "啦")
HISTORY = re.compile(r"到目前为止的聊天记录：\n<<<\n(.*?)\n>>>", re.DOTALL)
MEMES = re.compile(r"(?:编号为1到|，共)(\d+)")


def fingerprint(messages: list[tuple[str, str]], schema: str, seed: int | None) -> str:
    """Name of a request: the same for what goes over the wire and for the form of a recording."""
    return hashlib.sha256(json.dumps([messages, schema, seed]).encode()).hexdigest()


def fingerprint_of_form(form: dict[str, Any]) -> str:
    """Fingerprint of a recorded normal form without images."""
    schema = (form["schema"] or {}).get("name", "")
    return fingerprint([(m["role"], m["text"]) for m in form["messages"]], schema, form["seed"])


def drawn(*names: object) -> Iterator[int]:
    """Whole numbers without end that depend on `names` alone."""
    digest = hashlib.sha256("|".join(map(str, names)).encode()).digest()
    while True:
        yield from digest
        digest = hashlib.sha256(digest).digest()


def pick(words: list[str], count: int, numbers: Iterator[int]) -> list[str]:
    left = list(words)
    return [left.pop(next(numbers) % len(left)) for _ in range(count)]


def utterance(messages: list[tuple[str, str]], numbers: Iterator[int]) -> str:
    """A line of up to 18 turns of which none breaks a rule of `rules`."""
    found = next((h for _, text in reversed(messages) if (h := HISTORY.search(text))), None)
    turn = found.group(1).count("：") if found else 0
    words = pick(SLOTS[turn % len(SLOTS)], 4, numbers)
    return "".join(words[:2]) + "，" + "".join(words[2:]) + ENDINGS[next(numbers) % 4]


def breaking(text: str, messages: list[tuple[str, str]], numbers: Iterator[int]) -> str:
    """A line that breaks one of the rules, each time in a way of its own."""
    history = next((h.group(1) for _, told in reversed(messages) if (h := HISTORY.search(told))), "")
    said = [line.partition("：")[2] for line in history.splitlines() if "：" in line]
    ways = [f"（笑）{text}", f"{text}T_T", f"以下是修改后的：{text}", text * 3, *said[-1:]]
    return ways[next(numbers) % len(ways)]


def value_of(schema: dict[str, Any], root: dict[str, Any], text: str, numbers: Iterator[int]) -> Any:
    """A value of a JSON schema."""
    if "$ref" in schema:
        return value_of(root["$defs"][schema["$ref"].rpartition("/")[2]], root, text, numbers)
    if "anyOf" in schema:
        return value_of(schema["anyOf"][0], root, text, numbers)
    if "none" in schema.get("enum", ()):
        return "none"  # the simulated annotator finds nothing unsafe
    if "enum" in schema:
        return schema["enum"][next(numbers) % len(schema["enum"])]
    if "properties" in schema:
        made = {key: value_of(inner, root, text, numbers) for key, inner in schema["properties"].items()}
        return made | ({"number": made["number"] % 6} if "number" in made else {})  # of a few candidates
    if schema.get("type") == "array":
        memes = MEMES.search(text)
        items = [value_of(schema["items"], root, text, numbers) for _ in range(int(memes[1]) if memes else 1)]
        return [{**item, "meme": n} if "meme" in item else item for n, item in enumerate(items, start=1)]
    if schema.get("type") in ("integer", "number"):
        return 20 + next(numbers) % 80
    words = pick([SLOTS[next(numbers) % len(SLOTS)][next(numbers) % 8] for _ in range(10)], 10, numbers)
    return "".join(words[:5]) + "，" + "".join(words[5:])


VECTOR = 2_304
"""Numbers of a vector, as many as MiniCPM-Embedding's."""


def vectors_of(request: dict[str, Any]) -> dict[str, Any]:
    """Vectors of the texts of an embedding request, each drawn by its text alone."""
    data = []
    for index, text in enumerate(request["input"]):
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        numbers = np.random.default_rng(int.from_bytes(digest)).integers(-99, 100, VECTOR)
        data.append({"object": "embedding", "index": index, "embedding": numbers.tolist()})
    tokens = sum(map(len, request["input"]))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request["model"], "usage": usage}


class Asked:
    """One request as the server reads it."""

    def __init__(self, request: dict[str, Any], breaks: float = 0.0) -> None:
        self.messages, self.images = [], []
        for message in request["messages"]:
            text = message["content"]
            if isinstance(text, list):
                self.images += [part["image_url"]["url"] for part in text if part["type"] == "image_url"]
                text = "".join(part.get("text", "") for part in text)
            self.messages.append((message["role"], text))
        form = request.get("response_format", {}).get("json_schema", {})
        self.schema, self.name, self.model = form.get("schema"), form.get("name", ""), request["model"]
        self.logprobs = bool(request.get("logprobs"))
        self.fingerprint = fingerprint(self.messages, self.name, request.get("seed"))
        self._breaks = breaks
        self._numbers = drawn(self.messages, self.name, *self.images, "")

    def reply(self, change: str = "") -> dict[str, Any]:
        """The completion; `change` is a fault of its content."""
        logprobs = None
        if self.schema is not None:
            value = value_of(self.schema, self.schema, self.messages[-1][1], self._numbers)
            text = json.dumps(value, ensure_ascii=False)
        elif self.logprobs:
            yes = next(self._numbers) / 256
            text = "是" if yes > 0.5 else "否"
            tops = [{"token": "是", "logprob": -1.5 + yes}, {"token": "否", "logprob": -0.5 - yes}]
            logprobs = {"content": [{"token": text, "logprob": -0.1, "top_logprobs": tops}]}
        else:
            text = utterance(self.messages, self._numbers)
            if next(self._numbers) < 256 * self._breaks:
                text = breaking(text, self.messages, self._numbers)
        finish = "length" if change == "cut text" and next(self._numbers) % 2 else "stop"
        cut = text[: len(text) // 2] if self.schema or finish == "length" else ""
        spoilt = {"cut text": cut, "empty text": "", "garbled text": text.encode().decode("latin-1")}
        text = spoilt.get(change, text)
        counts = sum(len(text) for _, text in self.messages), len(text)
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": finish, "logprobs": logprobs, "message": message}
        return {"id": "x", "object": "chat.completion", "created": 1, "model": self.model,
                "choices": [choice], "usage": usage}  # fmt: skip
