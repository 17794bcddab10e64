// Package docs holds those of PyBox's documents that its programs hand out. It
// reads nothing and knows nothing of their meaning.
package docs

import _ "embed"

// ReceiptSchema is the JSON Schema (2020-12) of a receipt.
//
//go:embed receipt.v1.schema.json
var ReceiptSchema []byte

// OpenAPI is the OpenAPI 3.1 description of the daemon's API, as JSON.
//
//go:embed openapi.json
var OpenAPI []byte
