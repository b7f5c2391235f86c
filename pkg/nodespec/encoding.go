package nodespec

import (
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Encode encodes the input or the output of a command as JSON. A message of the API gets the JSON
// form of protobuf. In a message, Encode replaces invalid UTF-8, as package json does for other
// values.
func Encode(value any) ([]byte, error) {
	message, ok := value.(proto.Message)
	if !ok {
		return json.Marshal(value)
	}
	replaceInvalid(message.ProtoReflect())
	return protojson.Marshal(message)
}

// decode decodes the output of Encode into a message, or into another value by its pointer. It
// ignores unknown fields.
func decode(text []byte, into any) error {
	if message, ok := into.(proto.Message); ok {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, message)
	}
	return json.Unmarshal(text, into)
}

// ReadRequest decodes the input of a command. Q is a message of the API (a pointer) or another
// type.
func ReadRequest[Q any](from io.Reader) (request Q, err error) {
	into := any(&request)
	if message, ok := any(request).(proto.Message); ok {
		message = message.ProtoReflect().New().Interface()
		request, into = message.(Q), message
	}
	text, err := io.ReadAll(from)
	if err == nil {
		err = decode(text, into)
	}
	if err != nil {
		return request, fmt.Errorf("cannot decode the request: %w", err)
	}
	return request, nil
}

// WriteAnswer encodes the output of a command and writes it with a line break.
func WriteAnswer(to io.Writer, answer any) error {
	text, err := Encode(answer)
	if err != nil {
		return fmt.Errorf("cannot encode the answer: %w", err)
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// replaceInvalid replaces invalid UTF-8 in the strings of a message, as package json does. Error
// texts and the names of other etcd members may contain invalid UTF-8, and protobuf would reject
// the whole message.
func replaceInvalid(m protoreflect.Message) {
	valid := func(v protoreflect.Value) protoreflect.Value {
		return protoreflect.ValueOfString(string([]rune(v.String())))
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		text, list := field.Kind() == protoreflect.StringKind, field.IsList()
		switch {
		case text && list:
			for i := range v.List().Len() {
				v.List().Set(i, valid(v.List().Get(i)))
			}
		case text:
			m.Set(field, valid(v))
		case field.Message() != nil && list:
			for i := range v.List().Len() {
				replaceInvalid(v.List().Get(i).Message())
			}
		case field.Message() != nil && !field.IsMap():
			replaceInvalid(v.Message())
		}
		return true
	})
}
