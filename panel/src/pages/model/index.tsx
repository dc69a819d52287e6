import { Empty, Page } from "../../ui";

export default function ModelPage() {
  return (
    <Page title="Model">
      <Empty icon="model" title="Nothing to show" />
    </Page>
  );
}
