package relay

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Frame is a message that a proxy forwards without decoding it.
type Frame struct{ data mem.BufferSlice }

// Codec passes a Frame through. It encodes and decodes all other messages as protobuf.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns the codec for both sides of a proxy.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2. gRPC frees the buffers of the result after it has sent them.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return f.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. gRPC frees its reference to the buffers after Unmarshal,
// so a Frame takes a reference of its own.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
