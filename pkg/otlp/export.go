package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	neturl "net/url"
	"strconv"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// contentType is the media type of binary protobuf.
	contentType = "application/x-protobuf"
	// maxAnswer is the maximum number of bytes that Post reads of a response body.
	maxAnswer = 16 << 10
	// maxText is the maximum length of a text of the receiver in an error, in bytes.
	maxText = 300
	// MaxWait is the maximum time that a receiver can request by Retry-After.
	MaxWait = 5 * time.Minute
)

// Answer is the response of a receiver after which the sender must not repeat the records.
type Answer struct {
	// Rejected is the number of records that the receiver has rejected. By the protocol, the sender
	// must not repeat them.
	Rejected uint64
	// Problem is the reason of the receiver, or a warning if Rejected is 0; empty for none.
	Problem string
}

// Refusal is the response of a receiver that has not accepted the records. The sender must repeat
// them later.
type Refusal struct {
	Status int           // HTTP status
	Wait   time.Duration // time until the next attempt that the receiver requests; 0 to MaxWait
	Text   string        // reason of the receiver; empty for none
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("the receiver answers %d %s", r.Status, http.StatusText(r.Status))
	if r.Text != "" {
		text += ": " + r.Text
	}
	return text
}

// Encode returns records as the body of a request, compressed.
func Encode(data *logs.LogsData) ([]byte, error) {
	plain, err := proto.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("otlp: cannot encode: %w", err)
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("otlp: cannot compress: %w", err)
	}
	return out.Bytes(), nil
}

// Post sends a body of Encode to a URL; records is the number of records in it. An error means that
// the caller must send the records again later. The error is a *Refusal if the receiver has
// responded. Success, 400 and 413 are not refusals. All other statuses are refusals: some are
// retryable by the protocol, and the others have a cause that can go away, for example a missing
// certificate. The client must follow no redirect.
func Post(ctx context.Context, client *http.Client, url string, body []byte, records int) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Content-Encoding", "gzip")
	request.Header.Set("User-Agent", "orlop")
	response, err := client.Do(request)
	if failure := (*neturl.Error)(nil); errors.As(err, &failure) {
		err = failure.Err // omits the URL, because the caller knows the URL
	}
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return Answer{}, fmt.Errorf("cannot read the answer: %w", err)
	}
	return interpret(response.StatusCode, response.Header, text, records, time.Now())
}

// interpret returns the result of Post for a response: status, header and body. records is the
// number of records in the request.
func interpret(code int, header http.Header, body []byte, records int, now time.Time) (Answer, error) {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	isProtobuf := err == nil && kind == contentType
	switch {
	case code >= 200 && code <= 299:
		switch {
		case isProtobuf:
			return partial(body, records)
		case len(body) == 0 || err == nil && kind == "application/json":
			return Answer{}, nil // several receivers respond like this
		}
		return Answer{}, errAnswer // another server responds, for example a portal
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge:
		return Answer{Rejected: uint64(records), Problem: (&Refusal{Status: code, Text: reason(isProtobuf, body)}).Error()}, nil
	}
	return Answer{}, &Refusal{Status: code, Wait: retryAfter(header.Get("Retry-After"), now), Text: reason(isProtobuf, body)}
}

// errAnswer is the error for a response with a status of success that is no
// ExportLogsServiceResponse.
var errAnswer = errors.New("the answer of the receiver is no answer of OTLP")

// partial decodes an ExportLogsServiceResponse. Its field 1 is partial_success, a message with
// field 1, rejected_log_records, and field 2, error_message.
func partial(body []byte, records int) (a Answer, err error) {
	err = fields(body, func(number protowire.Number, _ uint64, message []byte) error {
		if number != 1 || message == nil {
			return nil
		}
		return fields(message, func(number protowire.Number, value uint64, text []byte) error {
			switch {
			case number == 1 && text == nil:
				a.Rejected = min(value, uint64(records))
			case number == 2 && text != nil:
				a.Problem = sanitize.ASCII(string(text), maxText)
			}
			return nil
		})
	})
	return a, err
}

// fields calls the function each for every field of a message that is a varint (argument value) or
// has a length (argument content). It skips all other fields. It fails with errAnswer for an
// invalid message.
func fields(message []byte, each func(number protowire.Number, value uint64, content []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errAnswer
		}
		message = message[n:]
		var value uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			if content, n = protowire.ConsumeBytes(message); content == nil {
				content = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return errAnswer
		}
		message = message[n:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := each(number, value, content); err != nil {
			return err
		}
	}
	return nil
}

// reason returns the text of a failed request. In protobuf, the body is a google.rpc.Status.
func reason(isProtobuf bool, body []byte) string {
	var s status.Status
	if isProtobuf && proto.Unmarshal(body, &s) == nil {
		return sanitize.ASCII(s.GetMessage(), maxText)
	}
	return sanitize.ASCII(string(bytes.TrimSpace(body)), maxText)
}

// retryAfter parses a header Retry-After (RFC 9110, 10.2.3). It returns at most MaxWait, and 0 for
// an invalid header.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, MaxWait)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), MaxWait)
	}
	return 0
}
