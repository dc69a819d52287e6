import { Component, createRef } from "preact";
import { useMemo } from "preact/hooks";
import type { TokensList } from "marked";
import { MAX_MARKDOWN_CHARS, blocksOf, rendered } from "./safe_markdown";

/** A model's text as Markdown; parts that stay the same while it grows are left alone. */
export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => (text.length > MAX_MARKDOWN_CHARS ? null : blocksOf(text)), [text]);
  if (blocks === null) {
    return <pre class="md-plain">{text}</pre>;
  }
  return (
    <div class="md">
      {blocks.map((block, index) => (
        <Block key={index} raw={block.raw} tokens={block.tokens} />
      ))}
    </div>
  );
}

/** One part; its nodes are replaced only when its text differs. */
class Block extends Component<{ raw: string; tokens: TokensList }> {
  readonly #place = createRef<HTMLDivElement>();

  override shouldComponentUpdate(next: Readonly<{ raw: string }>): boolean {
    return next.raw !== this.props.raw;
  }

  override componentDidMount(): void {
    this.#draw();
  }

  override componentDidUpdate(): void {
    this.#draw();
  }

  #draw(): void {
    this.#place.current?.replaceChildren(rendered(this.props.tokens));
  }

  override render() {
    return <div ref={this.#place} />;
  }
}
