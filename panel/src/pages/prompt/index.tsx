import { Empty, Page } from "../../ui";

export default function PromptPage() {
  return (
    <Page title="Prompt">
      <Empty icon="prompt" title="Nothing to show" />
    </Page>
  );
}
