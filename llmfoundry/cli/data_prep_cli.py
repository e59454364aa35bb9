"""``llmfoundry data_prep``: text into shards."""

from typing import Annotated

import typer

from llmfoundry import command_utils
from llmfoundry.utils.cpu_count import default_processes

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_show_locals=False, no_args_is_help=True)

Compression = Annotated[str | None, typer.Option(help="Compression of the shards.")]
ConcatTokens = Annotated[int | None, typer.Option(help="Tokens of a row.")]
Tokenizer = Annotated[str | None, typer.Option(help="Tokenizer: a folder or a hub name.")]
BosText = Annotated[str | None, typer.Option(help="Text of the token that starts a document.")]
EosText = Annotated[str | None, typer.Option(help="Text of the token that ends a document.")]
NoWrap = Annotated[
    bool, typer.Option("--no-wrap", help="Throw away what a full row leaves of its documents.")
]
Packing = Annotated[
    str, typer.Option(help="concat cuts where a row ends; best_fit fits whole documents into rows.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that tokenise, all CPUs if unset; the result is the same."),
]
Format = Annotated[str, typer.Option("--format", help="mds, or tokens: flat files of token ids.")]


@app.command(name="convert_dataset_hf")
def convert_dataset_hf(
    dataset: Annotated[str, typer.Option(help="allenai/c4 or the_pile.")],
    out_root: Annotated[str, typer.Option(help="Folder of the split folders.")],
    data_subset: Annotated[str | None, typer.Option(help="Configuration, such as en.")] = None,
    splits: Annotated[
        str, typer.Option(help="Our splits, with commas between.")
    ] = "train,train_small,val,val_small,val_xsmall",
    compression: Compression = None,
    concat_tokens: ConcatTokens = None,
    tokenizer: Tokenizer = None,
    tokenizer_kwargs: Annotated[
        str | None, typer.Option(help="Arguments of the tokenizer, as JSON.")
    ] = None,
    bos_text: BosText = None,
    eos_text: EosText = None,
    no_wrap: NoWrap = False,
    num_workers: Workers = None,
    packing: Packing = "concat",
    output_format: Format = "mds",
) -> None:
    """Write splits of C4 or the Pile as shards."""
    command_utils.convert_dataset_hf_from_args(
        dataset=dataset,
        data_subset=data_subset,
        splits=[split.strip() for split in splits.split(",") if split.strip()],
        out_root=out_root,
        compression=compression,
        concat_tokens=concat_tokens,
        tokenizer=tokenizer,
        tokenizer_kwargs=tokenizer_kwargs,
        bos_text=bos_text,
        eos_text=eos_text,
        no_wrap=no_wrap,
        num_workers=num_workers,
        packing=packing,
        output_format=output_format,
    )


@app.command(name="convert_dataset_json")
def convert_dataset_json(
    path: Annotated[str, typer.Option(help="A JSON file, or a folder of them.")],
    out_root: Annotated[str, typer.Option(help="Folder of the shards.")],
    concat_tokens: ConcatTokens = None,
    tokenizer: Tokenizer = None,
    compression: Compression = "zstd",
    split: Annotated[str, typer.Option(help="Always train: JSON files have no other.")] = "train",
    bos_text: BosText = None,
    eos_text: EosText = None,
    no_wrap: NoWrap = False,
    num_workers: Workers = None,
    packing: Packing = "concat",
    output_format: Format = "mds",
) -> None:
    """Write JSON files with a text column as shards."""
    command_utils.convert_dataset_json_from_args(
        path=path,
        out_root=out_root,
        compression=compression,
        concat_tokens=concat_tokens,
        split=split,
        tokenizer=tokenizer,
        bos_text=bos_text,
        eos_text=eos_text,
        no_wrap=no_wrap,
        num_workers=num_workers,
        packing=packing,
        output_format=output_format,
    )


@app.command(name="convert_finetuning_dataset")
def convert_finetuning_dataset(
    dataset: Annotated[
        str, typer.Option(help="A hub name, a folder or file, or json, csv, parquet.")
    ],
    out_root: Annotated[str, typer.Option(help="Folder of the split folders.")],
    data_subset: Annotated[str | None, typer.Option(help="Configuration of the data.")] = None,
    splits: Annotated[
        str, typer.Option(help="Splits with commas between; each becomes a folder.")
    ] = "train,validation",
    preprocessor: Annotated[
        str | None, typer.Option(help="A registered name, or package.module:function.")
    ] = None,
    data_files: Annotated[
        str, typer.Option(help="The file of each split, in their order, with commas between.")
    ] = "",
    skip_preprocessing: Annotated[
        bool,
        typer.Option("--skip-preprocessing", help="Rows are prompts and responses, or chats."),
    ] = False,
    local: Annotated[str | None, typer.Option(help="A second folder to keep a copy in.")] = None,
    compression: Compression = None,
    num_workers: Workers = None,
    tokenizer: Tokenizer = None,
    tokenizer_kwargs: Annotated[
        str | None, typer.Option(help="Arguments of the tokenizer, as JSON.")
    ] = None,
    max_seq_len: Annotated[int, typer.Option(help="Tokens of a row in training.")] = 2048,
    target_prompts: Annotated[
        str, typer.Option(help="Prompts to learn: none, all or length>=N.")
    ] = "none",
    target_responses: Annotated[str, typer.Option(help="Answers to learn: last or all.")] = "last",
    encoder_decoder: Annotated[
        bool, typer.Option("--encoder-decoder", help="Training is of an encoder-decoder.")
    ] = False,
) -> None:
    """Write splits of a fine-tuning data set as MDS shards: texts, or turns of token ids."""
    command_utils.convert_finetuning_dataset_from_args(
        dataset=dataset,
        data_subset=data_subset,
        splits=[split.strip() for split in splits.split(",") if split.strip()],
        preprocessor=preprocessor,
        data_files=[file.strip() for file in data_files.split(",") if file.strip()],
        skip_preprocessing=skip_preprocessing,
        out_root=out_root,
        local=local,
        compression=compression,
        num_workers=num_workers,
        tokenizer=tokenizer,
        tokenizer_kwargs=tokenizer_kwargs,
        max_seq_len=max_seq_len,
        target_prompts=target_prompts,
        target_responses=target_responses,
        encoder_decoder=encoder_decoder,
    )


@app.command(name="convert_text_to_mds")
def convert_text_to_mds(
    output_folder: Annotated[str, typer.Option(help="Folder of the shards.")],
    input_folder: Annotated[str, typer.Option(help="Folder of the text files.")],
    concat_tokens: Annotated[int, typer.Option(help="Tokens of a row.")],
    tokenizer: Annotated[str, typer.Option(help="Tokenizer: a folder or a hub name.")],
    bos_text: BosText = None,
    eos_text: EosText = None,
    compression: Compression = "zstd",
    use_tokenizer_eos: Annotated[
        bool, typer.Option("--use-tokenizer-eos", help="End documents with the tokenizer's own.")
    ] = False,
    no_wrap: NoWrap = False,
    processes: Annotated[
        int, typer.Option(help="Processes that tokenise; the result is the same.")
    ] = default_processes(),
    reprocess: Annotated[
        bool, typer.Option("--reprocess", help="Write again what the same call wrote.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the tokenizer.")
    ] = False,
    logging_level: Annotated[str, typer.Option(help="Level of Python's logging.")] = "INFO",
    packing: Packing = "concat",
    output_format: Format = "mds",
) -> None:
    """Write the text files below a folder as shards of token rows."""
    command_utils.convert_text_to_mds_from_args(
        output_folder=output_folder,
        input_folder=input_folder,
        compression=compression,
        concat_tokens=concat_tokens,
        tokenizer_name=tokenizer,
        bos_text=bos_text,
        eos_text=eos_text,
        use_tokenizer_eos=use_tokenizer_eos,
        no_wrap=no_wrap,
        processes=processes,
        reprocess=reprocess,
        trust_remote_code=trust_remote_code,
        logging_level=logging_level,
        packing=packing,
        output_format=output_format,
    )


@app.command(
    name="convert_delta_to_json",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def convert_delta_to_json() -> None:
    """Left behind: says what to use instead."""
    command_utils.convert_delta_to_json_from_args()


@app.command(name="fetch_text")
def fetch_text(
    output_folder: Annotated[str, typer.Option(help="Folder of the text files.")],
    corpus: Annotated[str, typer.Option(help="Which free corpus.")] = "shakespeare",
) -> None:
    """Fetch a free corpus as one text file a work."""
    command_utils.fetch_text(output_folder=output_folder, corpus=corpus)


@app.command(name="split_text")
def split_text(
    input_folder: Annotated[str, typer.Option(help="Folder of the text files.")],
    output_folder: Annotated[str, typer.Option(help="Gets the folders train and val.")],
    held_out: Annotated[float, typer.Option(help="Share of the bytes to hold out.")] = 0.05,
) -> None:
    """Split text files into train and val, whole works at a time."""
    command_utils.split_text(
        input_folder=input_folder, output_folder=output_folder, held_out=held_out
    )


@app.command(name="train_tokenizer")
def train_tokenizer(
    input_folder: Annotated[str, typer.Option(help="Folder of the text files.")],
    output_folder: Annotated[str, typer.Option(help="Folder of the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Pieces, special token included.")] = 4096,
    model_max_length: Annotated[
        int | None, typer.Option(help="Longest sequence of the model, in tokens.")
    ] = None,
) -> None:
    """Train a byte-level BPE tokenizer on the text files below a folder."""
    command_utils.train_tokenizer(
        input_folder=input_folder,
        output_folder=output_folder,
        vocab_size=vocab_size,
        model_max_length=model_max_length,
    )
