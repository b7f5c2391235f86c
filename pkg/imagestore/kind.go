package imagestore

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// headSize is the number of bytes that are read to identify a file. It includes the signature of an
// ISO 9660 image, at 32 KiB.
const headSize = 33 << 10

// tarBlock is the size of a header of a tar archive, in bytes (pax(1), "ustar Interchange Format").
const tarBlock = 512

// remedy tells the user which files are accepted.
const remedy = "give an OCI archive or the output of `docker save`, plain or compressed by gzip or zstd"

// magics are the signatures of files that users import by mistake, with their offsets.
var magics = []struct {
	at    int
	bytes string
	is    string
}{
	{0, "\xfd7zXZ\x00", "compressed by xz, which is not read; decompress it first (xz -d FILE)"},
	{0, "BZh", "compressed by bzip2, which is not read; decompress it first (bzip2 -d FILE)"},
	{0, "\x04\x22\x4d\x18", "compressed by lz4, which is not read; decompress it first (lz4 -d FILE)"},
	{0, "\x5d\x00\x00", "compressed by lzma, which is not read; decompress it first (xz -d FILE)"},
	{0, "LZIP", "compressed by lzip, which is not read; decompress it first (lzip -d FILE)"},
	{0, "\x1f\x9d", "compressed by compress, which is not read; decompress it first (uncompress FILE)"},
	{0, "PK\x03\x04", "a zip archive"},
	{0, "PK\x05\x06", "an empty zip archive"},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive"},
	{0, "Rar!\x1a\x07", "a rar archive"},
	{0, "QFI\xfb", "a qcow2 disk image"},
	{0, "KDMV", "a VMDK disk image"},
	{0, "conectix", "a VHD disk image"},
	{0, "vhdxfile", "a VHDX disk image"},
	{0, "hsqs", "a squashfs file system"},
	{0, "SIF_MAGIC", "a Singularity image"},
	{32, "SIF_MAGIC", "a Singularity image"},
	{1024, "\xe2\xe1\xf5\xe0", "an EROFS file system"},
	{1080, "\x53\xef", "an ext file system"},
	{0, "\x7fELF", "a program (ELF)"},
	{0, "MZ", "a program for Windows or UEFI (PE)"},
	{0, "!<arch>\n", "a Debian package or a static library (ar)"},
	{0, "\xed\xab\xee\xdb", "an RPM package"},
	{0, "070701", "a cpio archive"},
	{0, "%PDF", "a PDF document"},
	{0, "-----BEGIN ", "a PEM file"},
	{0, "version https://git-lfs.github.com/", "a pointer of Git LFS, not the file; fetch it first (git lfs pull)"},
	{32769, "CD001", "an ISO 9660 image"},
	{512, "EFI PART", "a disk image (GPT)"},
}

// rejectedKind returns a sentence about a file that is not an archive, by its first bytes (head).
// It returns an empty string if the file may be an archive. whole means that head is the whole
// file.
func rejectedKind(head []byte, whole bool) string {
	if len(head) == 0 {
		return "the file is empty"
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}): // RFC 1952, 2.3.1
		return unzipped(head, whole)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18}):
		return "" // RFC 8878, 3.1.1 and 3.1.2: containerd decompresses it
	case isTar(head):
		return ""
	}
	if len(bytes.Trim(head, "\x00")) == 0 {
		return "the file begins with zeros only: it is an empty archive, or no archive"
	}
	for _, m := range magics {
		if len(head) > m.at && bytes.HasPrefix(head[m.at:], []byte(m.bytes)) {
			return "the file is " + m.is
		}
	}
	if is := text(head); is != "" {
		return "the file is " + is
	}
	if len(head) >= tarBlock && head[510] == 0x55 && head[511] == 0xaa {
		return "the file is a disk image (MBR)"
	}
	if len(head) < tarBlock {
		return fmt.Sprintf("the file has %d bytes, and is no tar archive", len(head))
	}
	return fmt.Sprintf("the file is no tar archive; it begins with the bytes % x", head[:8])
}

// unzipped applies rejectedKind to the beginning of the content of a gzip file.
func unzipped(head []byte, whole bool) string {
	r, err := gzip.NewReader(bytes.NewReader(head))
	block := make([]byte, tarBlock)
	n := 0
	if err == nil {
		n, err = io.ReadFull(r, block)
	}
	switch {
	case isTar(block[:n]):
		return ""
	case err == nil, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && whole:
		// The content is decompressed only once, because the nesting can be endless.
		if bytes.HasPrefix(block[:n], []byte{0x1f, 0x8b}) {
			return "the file is compressed by gzip more than once; decompress it first (gzip -d FILE)"
		}
		if is := rejectedKind(block[:n], true); is != "" {
			return "compressed by gzip: " + is
		}
		return ""
	case errors.Is(err, io.ErrUnexpectedEOF): // the head is too short
		return ""
	}
	return fmt.Sprintf("the file is compressed by gzip, and damaged: %v", err)
}

// text returns the kind of a text file, or an empty string for other files.
func text(head []byte) string {
	start := strings.ToLower(string(bytes.TrimLeft(bytes.TrimPrefix(head[:min(len(head), 2*tarBlock)], []byte("\xef\xbb\xbf")), " \t\r\n")))
	switch {
	case strings.HasPrefix(start, "<!doctype html"), strings.HasPrefix(start, "<html"), strings.HasPrefix(start, "<head"), strings.HasPrefix(start, "<body"):
		return "an HTML page, perhaps an error or a login page of the server it was downloaded from"
	case strings.HasPrefix(start, "<?xml"), strings.HasPrefix(start, "<error"):
		return "an XML document, perhaps an error of the server it was downloaded from"
	case strings.HasPrefix(start, "{"), strings.HasPrefix(start, "["):
		return "a JSON document, such as a manifest, and not the image"
	case strings.HasPrefix(start, "#!"):
		return "a script"
	}
	head = head[:min(len(head), tarBlock)]
	// The last character may be incomplete.
	for cut := 0; cut < utf8.UTFMax && !utf8.Valid(head); cut++ {
		head = head[:len(head)-1]
		if len(head) == 0 {
			return ""
		}
	}
	if !utf8.Valid(head) {
		return ""
	}
	for _, b := range head {
		if b < ' ' && b != '\n' && b != '\r' && b != '\t' || b == 0x7f {
			return ""
		}
	}
	return "a text"
}

// isTar reports whether a block is the header of a tar member: its checksum must be the sum of its
// bytes, with spaces in place of the checksum. Some old programs add the bytes as signed numbers.
func isTar(block []byte) bool {
	if len(block) < tarBlock {
		return false
	}
	field := strings.Trim(string(block[148:156]), " \x00")
	want, err := strconv.ParseInt(field, 8, 64)
	if err != nil {
		return false
	}
	var unsigned, signed int64
	for i, b := range block[:tarBlock] {
		if 148 <= i && i < 156 {
			b = ' '
		}
		unsigned += int64(b)
		signed += int64(int8(b))
	}
	return want == unsigned || want == signed
}

// archive returns a reader of a file that may be an archive of images. For any other file, it
// returns an error with the kind of the file.
func archive(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, headSize)
	head, err := buffered.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("image import: the file cannot be read: %w", err)
	}
	if is := rejectedKind(head, err != nil); is != "" {
		return nil, fmt.Errorf("image import: %s; %s", is, remedy)
	}
	return buffered, nil
}

// refused converts an error text of containerd about an archive to an error for the user.
func refused(message string) error {
	for _, known := range [][2]string{
		{"unrecognized image format", "it is a tar archive, but of no image: it has neither oci-layout and index.json, nor manifest.json (`docker export` and `podman export` write files of a container, not an image)"},
		{"unexpected EOF", "it is cut off"},
		{"missing index.json", "its index.json is missing"},
		{"invalid tar header", "it is damaged, or no tar archive"},
		{"image might be filtered out", "it has no image for linux/" + architecture},
	} {
		if strings.Contains(message, known[0]) {
			return fmt.Errorf("image import: the archive cannot be used: %s; %s (containerd: %s)", known[1], remedy, message)
		}
	}
	return fmt.Errorf("image import: containerd refused the archive: %s", message)
}
