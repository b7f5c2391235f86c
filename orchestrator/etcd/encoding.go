package etcd

import (
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// decode reads a request.
func decode[Q any](from io.Reader) (request Q, err error) {
	message, ok := any(request).(proto.Message)
	if !ok {
		err = json.NewDecoder(from).Decode(&request)
	} else {
		message = message.ProtoReflect().New().Interface()
		request = message.(Q)
		var text []byte
		if text, err = io.ReadAll(from); err == nil {
			err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, message)
		}
	}
	if err != nil {
		return request, fmt.Errorf("cannot decode the request: %w", err)
	}
	return request, nil
}

// Encode writes the answer of a command.
func Encode(to io.Writer, answer any) error {
	message, ok := answer.(proto.Message)
	if !ok {
		return json.NewEncoder(to).Encode(answer)
	}
	replaceInvalid(message.ProtoReflect())
	text, err := protojson.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode the answer: %w", err)
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// replaceInvalid replaces invalid UTF-8 in the strings of a message, as package json does. Errors
// and names of other members may contain it, and protobuf would reject the whole message.
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
