import { Component, createRef } from "preact";
import { useRef } from "preact/hooks";
import { type MarkdownText, NO_TEXT, grown } from "./markdown_blocks";
import { rendered } from "./safe_markdown";

/** A model's text as Markdown; blocks that stay the same while it grows are left alone. */
export function Markdown({ text }: { text: string }) {
  const known = useRef<MarkdownText>(NO_TEXT);
  known.current = grown(known.current, text);
  const { blocks, definitions } = known.current;
  return (
    <div class="md">
      {blocks.map((block, index) =>
        block.isPlain ? (
          <pre key={index} class="md-plain">
            {block.raw}
          </pre>
        ) : (
          <Block key={index} raw={block.raw} definitions={block.raw.includes("]") ? definitions : ""} />
        ),
      )}
    </div>
  );
}

interface BlockProps {
  raw: string;
  definitions: string;
}

/** One block; its nodes are replaced only when its text differs. */
class Block extends Component<BlockProps> {
  readonly #place = createRef<HTMLDivElement>();

  override shouldComponentUpdate(next: Readonly<BlockProps>): boolean {
    return next.raw !== this.props.raw || next.definitions !== this.props.definitions;
  }

  override componentDidMount(): void {
    this.#draw();
  }

  override componentDidUpdate(): void {
    this.#draw();
  }

  #draw(): void {
    this.#place.current?.replaceChildren(rendered(this.props.raw, this.props.definitions));
  }

  override render() {
    return <div ref={this.#place} />;
  }
}
