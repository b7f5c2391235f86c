package debian

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Walk calls visit for every entry of the package's data archive (deb(5)), in the order of the
// archive. Names are absolute and clean. content reads the content of the entry; it is valid only
// during the call.
func Walk(deb string, visit func(name string, h *tar.Header, content io.Reader) error) error {
	f, err := os.Open(deb)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := dataArchive(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", deb, err)
	}
	defer data.Close()
	for t := tar.NewReader(data); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// Read the rest, because the reader verifies the checksums at the end of the compressed
			// stream.
			if _, err := io.Copy(io.Discard, data); err != nil {
				return fmt.Errorf("%s: cannot read data archive: %w", deb, err)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: cannot read data archive: %w", deb, err)
		}
		if err := visit(path.Join("/", h.Name), h, t); err != nil {
			return err
		}
	}
}

// dataArchive finds the member data.tar.* of an ar archive (ar(5), the common format without long
// names) and returns its decompressed content.
func dataArchive(r *bufio.Reader) (io.ReadCloser, error) {
	const magic, headLen = "!<arch>\n", 60
	head := make([]byte, headLen)
	if _, err := io.ReadFull(r, head[:len(magic)]); err != nil || string(head[:len(magic)]) != magic {
		return nil, errors.New("is not an ar archive")
	}
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			return nil, fmt.Errorf("no member data.tar found: %w", err)
		}
		name := strings.TrimRight(string(head[:16]), " /")
		size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
		if err != nil || !bytes.Equal(head[58:], []byte("`\n")) {
			return nil, fmt.Errorf("ar header of %q is damaged", name)
		}
		if !strings.HasPrefix(name, "data.tar") {
			// Members start at even offsets.
			if _, err := r.Discard(int(size + size%2)); err != nil {
				return nil, err
			}
			continue
		}
		member := io.LimitReader(r, size)
		switch name {
		case "data.tar":
			return io.NopCloser(member), nil
		case "data.tar.xz":
			return unxz(member)
		case "data.tar.gz":
			return gzip.NewReader(member)
		case "data.tar.zst":
			d, err := zstd.NewReader(member)
			if err != nil {
				return nil, err
			}
			return d.IOReadCloser(), nil
		}
		return nil, fmt.Errorf("%s: unknown compression", name)
	}
}

// xzReader is the output of an xz process.
type xzReader struct {
	io.ReadCloser
	command *exec.Cmd
	message bytes.Buffer
	done    bool
	failed  error
}

// unxz returns the decompressed content. It runs the xz program of the computer, which is ten times
// as fast as a decoder in Go. xz verifies the checksums of the stream.
func unxz(compressed io.Reader) (io.ReadCloser, error) {
	x := &xzReader{command: exec.Command("xz", "--decompress", "--stdout")}
	x.command.Stdin, x.command.Stderr = compressed, &x.message
	var err error
	if x.ReadCloser, err = x.command.StdoutPipe(); err != nil {
		return nil, err
	}
	return x, x.command.Start()
}

// Read returns the error of the process in place of io.EOF if the process has failed.
func (x *xzReader) Read(p []byte) (int, error) {
	n, err := x.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		if x.wait(); x.failed != nil {
			err = x.failed
		}
	}
	return n, err
}

// Close ends the process, even if its output was not read to the end.
func (x *xzReader) Close() error {
	_ = x.ReadCloser.Close() // the next write of the process fails, which ends it
	x.wait()
	return nil
}

func (x *xzReader) wait() {
	if x.done {
		return
	}
	x.done = true
	if err := x.command.Wait(); err != nil {
		x.failed = fmt.Errorf("xz: %w: %s", err, strings.TrimSpace(x.message.String()))
	}
}
