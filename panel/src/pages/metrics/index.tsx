import { Empty, Page } from "../../ui";

export default function MetricsPage() {
  return (
    <Page title="Metrics">
      <Empty icon="metrics" title="Nothing to show" />
    </Page>
  );
}
