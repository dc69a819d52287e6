import { useRef, useState } from "preact/hooks";
import { Button, Icon } from "../../ui";
import { draft, isBusy, pictures, problems } from "./chat";
import { PICTURE_LIMITS, PICTURE_TYPES, pictureProblem, readPicture } from "./pictures";

/** Where a message is written: text, pictures by drop, paste or file; Enter sends. */
export function Composer({
  send,
  stop,
  seesPictures,
  disabled,
}: {
  send: () => void;
  stop: () => void;
  /** Why the deployment sees no pictures; null if it does. */
  seesPictures: string | null;
  disabled: string | null;
}) {
  const file = useRef<HTMLInputElement>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const [isOver, setOver] = useState(false);
  const firstProblem = [...problems.value][0];
  const isEmpty = draft.value.trim() === "" && pictures.value.length === 0;
  const obstacle = disabled ?? (firstProblem === undefined ? null : `Correct the settings: ${firstProblem[1]}`);

  const take = async (files: readonly File[]): Promise<void> => {
    setWrong(null);
    if (seesPictures !== null && files.length > 0) {
      setWrong(seesPictures);
      return;
    }
    for (const each of files) {
      const problem = pictureProblem(each, pictures.value.length);
      if (problem !== null) {
        setWrong(problem);
        return;
      }
      try {
        pictures.value = [...pictures.value, await readPicture(each)];
      } catch (error) {
        setWrong(error instanceof Error ? error.message : String(error));
      }
    }
  };
  const submit = (): void => {
    if (!isEmpty && !isBusy.value && obstacle === null) {
      setWrong(null);
      send();
    }
  };
  return (
    <form
      class={isOver ? "composer over" : "composer"}
      aria-label="Message"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => {
        if (event.dataTransfer?.types.includes("Files")) {
          event.preventDefault();
          setOver(true);
        }
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void take([...(event.dataTransfer?.files ?? [])]);
      }}
    >
      {pictures.value.length > 0 ? (
        <ul class="composer-pictures" aria-label="Pictures of the message">
          {pictures.value.map((picture, index) => (
            <li key={index}>
              <img src={picture.url} alt={picture.name || "pasted picture"} />
              <Button
                kind="quiet"
                size="small"
                icon="close"
                aria-label={`Remove ${picture.name || "the picture"}`}
                onClick={() => {
                  pictures.value = pictures.value.filter((_, at) => at !== index);
                }}
              />
            </li>
          ))}
        </ul>
      ) : null}
      <textarea
        class="composer-text"
        rows={2}
        aria-label="Your message"
        placeholder={disabled ?? "Write a message. Enter sends, Shift+Enter begins a new line."}
        disabled={disabled !== null}
        value={draft.value}
        onInput={(event) => {
          draft.value = event.currentTarget.value;
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            submit();
          }
        }}
        onPaste={(event) => {
          const files = [...(event.clipboardData?.files ?? [])];
          if (files.length > 0) {
            event.preventDefault();
            void take(files);
          }
        }}
      />
      <div class="composer-foot">
        <input
          ref={file}
          type="file"
          class="unseen"
          tabIndex={-1}
          aria-hidden="true"
          multiple
          accept={PICTURE_TYPES.join(",")}
          onChange={(event) => {
            const files = [...(event.currentTarget.files ?? [])];
            event.currentTarget.value = "";
            void take(files);
          }}
        />
        <Button
          kind="quiet"
          size="small"
          icon="upload"
          disabled={disabled !== null || seesPictures !== null}
          title={seesPictures ?? PICTURE_LIMITS}
          onClick={() => file.current?.click()}
        >
          Picture
        </Button>
        <span class="composer-note" role="status">
          {wrong !== null ? (
            <span class="field-error">{wrong}</span>
          ) : obstacle !== null && disabled === null ? (
            <span class="field-error">{obstacle}</span>
          ) : seesPictures === null ? (
            <span class="muted hide-small">{PICTURE_LIMITS}</span>
          ) : null}
        </span>
        {isBusy.value ? (
          <Button kind="danger" icon="stop" onClick={stop}>
            Stop
          </Button>
        ) : (
          <Button kind="primary" type="submit" icon="send" disabled={isEmpty || obstacle !== null}>
            Send
          </Button>
        )}
      </div>
      {isOver ? (
        <div class="composer-drop">
          <Icon name="download" /> Drop pictures here
        </div>
      ) : null}
    </form>
  );
}
