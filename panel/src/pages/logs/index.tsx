import { Empty, Page } from "../../ui";

export default function LogsPage() {
  return (
    <Page title="Logs">
      <Empty icon="logs" title="Nothing to show" />
    </Page>
  );
}
