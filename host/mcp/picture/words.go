package picture

import "strings"

// elements are those that only draw, or group, name and define what draws (SVG 1.1 and
// 2, without scripts, other documents, links and animations).
var elements = set("svg g defs symbol use style image " +
	"path rect circle ellipse line polyline polygon text tspan textPath " +
	"clipPath mask pattern marker linearGradient radialGradient stop " +
	"filter feBlend feColorMatrix feComponentTransfer feComposite feConvolveMatrix feDiffuseLighting " +
	"feDisplacementMap feDistantLight feDropShadow feFlood feFuncA feFuncB feFuncG feFuncR feGaussianBlur " +
	"feMerge feMergeNode feMorphology feOffset fePointLight feSpecularLighting feSpotLight feTile feTurbulence")

// leftOut are those that draw nothing.
var leftOut = set("metadata title desc")

// attributes are those that say how an element is drawn.
var attributes = set("id class style transform transform-origin version viewBox preserveAspectRatio " +
	// where, and how large
	"x y width height x1 y1 x2 y2 cx cy r rx ry fx fy fr d points dx dy rotate pathLength offset orient refX refY " +
	"markerWidth markerHeight markerUnits textLength lengthAdjust startOffset method spacing side " +
	"gradientUnits gradientTransform spreadMethod patternUnits patternContentUnits patternTransform " +
	"clipPathUnits maskUnits maskContentUnits filterUnits primitiveUnits mask-type " +
	// how it looks
	"alignment-baseline baseline-shift clip clip-path clip-rule color color-interpolation color-interpolation-filters " +
	"color-rendering direction display dominant-baseline fill fill-opacity fill-rule filter flood-color flood-opacity " +
	"font font-family font-size font-size-adjust font-stretch font-style font-variant font-weight " +
	"glyph-orientation-horizontal glyph-orientation-vertical image-rendering isolation kerning letter-spacing " +
	"lighting-color marker marker-end marker-mid marker-start mask mix-blend-mode opacity overflow paint-order " +
	"shape-rendering stop-color stop-opacity stroke stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin " +
	"stroke-miterlimit stroke-opacity stroke-width text-anchor text-decoration text-rendering unicode-bidi " +
	"vector-effect visibility white-space word-spacing writing-mode " +
	// filters
	"in in2 result mode type values tableValues slope intercept amplitude exponent operator k1 k2 k3 k4 order " +
	"kernelMatrix divisor bias targetX targetY edgeMode kernelUnitLength preserveAlpha surfaceScale diffuseConstant " +
	"specularConstant specularExponent limitingConeAngle scale xChannelSelector yChannelSelector stdDeviation radius " +
	"azimuth elevation z pointsAtX pointsAtY pointsAtZ baseFrequency numOctaves seed stitchTiles")

// names are attributes that are no CSS.
var names = set("id class")

// functions are those of CSS, and of transforms, that fetch nothing, in lower case.
var functions = set("rgb rgba hsl hsla hwb lab lch oklab oklch color-mix var calc min max clamp not is where " +
	"nth-child nth-last-child nth-of-type matrix translate translatex translatey scale scalex scaley rotate skewx skewy " +
	"blur brightness contrast drop-shadow grayscale hue-rotate invert opacity saturate sepia")

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}
