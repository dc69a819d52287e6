/** Pictures of a message: what is taken, and why one is not. */

import type { Picture } from "./conversation";

export const MAX_PICTURES = 8;
/** As a file; it travels a third larger, and a whole request has at most 32 MiB. */
export const MAX_PICTURE_BYTES = 8 * 1024 * 1024;
/** What the engine decodes. */
export const PICTURE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/bmp", "image/webp"];
export const PICTURE_LIMITS = `PNG, JPEG, GIF, BMP or WebP; at most ${MAX_PICTURES} pictures of 8 MiB`;

/** What is wrong with a file, in a sentence; null if it is taken. */
export function pictureProblem(
  file: { readonly name: string; readonly type: string; readonly size: number },
  already: number,
): string | null {
  const name = file.name.slice(0, 80) || "the picture";
  if (already >= MAX_PICTURES) return `${name}: the limit is ${MAX_PICTURES} pictures a message`;
  if (!PICTURE_TYPES.includes(file.type)) {
    return `${name} is ${file.type || "of an unknown type"}; PNG, JPEG, GIF, BMP and WebP are taken`;
  }
  if (file.size > MAX_PICTURE_BYTES) {
    const mib = (file.size / 1024 / 1024).toFixed(1);
    return `${name} has ${mib} MiB, the limit is ${MAX_PICTURE_BYTES / 1024 / 1024} MiB`;
  }
  return file.size === 0 ? `${name} is empty` : null;
}

/** A file as a data URI; rejects with an Error that names it if it cannot be read. */
export function readPicture(file: File): Promise<Picture> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.onload = () =>
      resolve({ name: file.name, type: file.type, bytes: file.size, url: String(reader.result) });
    reader.readAsDataURL(file);
  });
}
